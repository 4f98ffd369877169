"""Ollama's HTTP API, translated to and from the routes of the OpenAI API."""
