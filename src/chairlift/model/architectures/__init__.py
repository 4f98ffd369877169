"""Chairlift's own architectures: one small module each, built from the shared layers, and their registry."""
