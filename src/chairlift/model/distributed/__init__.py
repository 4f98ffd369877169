"""Tensor parallelism: the ranks of one model, each in its own process with its own part of every layer."""
