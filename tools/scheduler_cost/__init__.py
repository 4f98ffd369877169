"""Scheduler cost: measures the CPU time of the scheduler per step, for every scheduling policy."""
