"""Layers: the decoder that all architectures share, and the operations it is made of."""
