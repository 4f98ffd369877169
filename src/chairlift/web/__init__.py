"""HTTP layer of the API server: pure ASGI, independent of engine and models."""
