"""Model runner: turns step plans into tensors, runs the model, and sizes the KV cache."""
