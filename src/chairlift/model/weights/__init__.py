"""Weights: read from checkpoints by name, divided between ranks, and packed for the kernels."""
