"""Bookkeeping of the paged KV cache: blocks, hashes, block tables and references. No tensors."""
