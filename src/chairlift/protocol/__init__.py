"""Shapes on the wire of HTTP: OpenAI's types and server-sent events; no tensors, no engine, no server."""
