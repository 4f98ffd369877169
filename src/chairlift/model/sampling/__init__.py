"""Sampling: from logits to tokens and logprobs."""
