"""Measuring: seeded workloads, runs of the real engine, simulation, and reports of what was seen."""
