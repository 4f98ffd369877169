"""Clients of an engine: in a thread of this process, or in another process."""
