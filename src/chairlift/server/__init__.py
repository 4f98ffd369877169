"""Server: the replica's door, an OpenAI-compatible API over one text service."""
