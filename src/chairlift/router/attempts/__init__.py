"""Attempts of one client's request: failover, resume, hedging and the retry budget; no I/O and no clock."""
