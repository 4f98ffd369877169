"""The proxy: sends requests to replicas, and their responses to clients."""
