"""Builds a model: from a folder, or with random weights."""
