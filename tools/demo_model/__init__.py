"""Training of the demo model: conversations, tokenizer, training, evaluation, model card. Not part of the package."""
