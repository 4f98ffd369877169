"""Attention over the paged cache: one protocol, one slow and right reference, and backends that must equal it."""
