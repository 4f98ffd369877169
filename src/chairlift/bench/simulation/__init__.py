"""Simulation: runs the real scheduler under a fake clock with a step time model."""
