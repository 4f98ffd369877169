"""observability: metrics, logs and traces. Imports no other package; takes plain numbers and text."""
