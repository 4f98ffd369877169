"""bench: seeded workloads, runs of the real engine, simulation, and reports of the results."""
