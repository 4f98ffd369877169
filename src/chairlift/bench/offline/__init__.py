"""Offline benchmark: runs a workload on an engine in a subprocess and compares engines."""
