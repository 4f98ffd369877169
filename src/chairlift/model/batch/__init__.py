"""One step's inputs as tensors, and the shape of the KV cache."""
