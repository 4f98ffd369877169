"""Tensors: model families, attention backends, the sampler and the runner. The only room that imports torch."""
