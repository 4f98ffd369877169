"""Drafters: guess the next tokens of a sequence, which the model then computes in one step and confirms or rejects."""
