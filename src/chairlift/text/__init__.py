"""Strings to ids and back: tokenizers, chat templates, incremental text, stop strings."""
