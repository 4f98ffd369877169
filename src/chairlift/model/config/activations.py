"""ACTIVATIONS: the activations of gates, by their names in config.json. Imports no torch."""

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
OTHER_ACTIVATIONS = ("relu", "relu2", "gelu_new", "gelu_fast", "quick_gelu", "gelu_python", "mish", "tanh", "xielu")
"""Activations that transformers has and Chairlift's own architectures do not."""
