"""Structured output: what a request's output has to be becomes masks of what may be drawn next."""
