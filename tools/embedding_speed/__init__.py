"""Measures embeddings of many texts at once against one text after the other."""
