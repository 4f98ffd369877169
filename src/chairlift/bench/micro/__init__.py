"""Micro benchmarks: the time that the scheduler and structured outputs take in a step."""
