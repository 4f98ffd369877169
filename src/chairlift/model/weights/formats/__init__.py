"""Formats of checkpoints: each finds the parameters in a model folder, and reads their numbers."""
