"""Attention over the paged KV cache: a protocol, a slow reference, and backends that must match the reference."""
