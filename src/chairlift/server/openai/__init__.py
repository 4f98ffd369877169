"""OpenAI-compatible endpoints: parses requests, runs them, and formats responses."""
