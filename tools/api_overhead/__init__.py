"""Overhead of a replica's API process: chunks per second of one process, and the time that it adds to a request."""
