"""Generates the reference pages of docs/ from the code: settings, metrics and errors."""
