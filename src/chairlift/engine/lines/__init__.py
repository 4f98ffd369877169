"""Waiting lines: one file an order in which requests may board."""
