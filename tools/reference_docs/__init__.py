"""Generates the reference pages of docs/ from the code: settings, flags, metrics, errors, models and packages."""
