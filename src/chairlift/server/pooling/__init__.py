"""Routes whose responses are made of pooled hidden states: embeddings, scores and rankings."""
