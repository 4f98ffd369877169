"""Measures speculative decoding against plain decoding, on models that copy from their prompts."""
