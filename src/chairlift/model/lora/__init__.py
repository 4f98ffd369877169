"""LoRA adapters: their numbers by the names of a model's parameters."""
