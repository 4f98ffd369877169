"""Model architectures: one small module per architecture, built from the shared layers."""
