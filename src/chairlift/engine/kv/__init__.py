"""The paged KV cache's books: blocks, hashes, tables and who holds what. No tensors."""
