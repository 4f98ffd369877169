"""Load: the requests of a simulated fleet: drawn from a seed, read from a trace, or turns of conversations."""
