"""The drop-in for transformers' continuous batching: its manager, its configurations and its names."""
