"""Policy scenarios: measure the guarantees of the scheduling policies in the simulator, with fixed seeds."""
