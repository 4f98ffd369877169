"""The router: one OpenAI API in front of many replicas; imports no engine and no torch."""
