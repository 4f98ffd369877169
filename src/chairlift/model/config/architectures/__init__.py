"""Chairlift's own architectures: one module each, without torch, and their registry."""
