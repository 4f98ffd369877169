"""The demo model's workshop: its conversations, tokenizer, training, examination and card. Not part of the package."""
