"""Structured output: compiles a request's schema, regex, grammar or choice, and computes token masks from it."""
