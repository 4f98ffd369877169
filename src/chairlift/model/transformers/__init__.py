"""Decoders that transformers' own modules compute, over this engine's paged KV cache."""
