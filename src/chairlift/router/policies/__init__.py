"""Routing policies: which replica gets a request."""
