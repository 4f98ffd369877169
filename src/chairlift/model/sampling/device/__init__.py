"""Sampling on the logits' own device, without a copy to the host."""
