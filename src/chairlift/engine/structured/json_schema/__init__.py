"""JSON Schema lowering: rewrites a schema into an equivalent one whose keywords llguidance supports."""
