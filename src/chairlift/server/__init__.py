"""API server: an OpenAI-compatible HTTP API over one text service."""
