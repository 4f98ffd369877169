"""One small file a model family, built from the shared layers."""
