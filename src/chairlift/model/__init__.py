"""Models: architectures, attention backends, the sampler and the runner. The only package that imports torch."""
