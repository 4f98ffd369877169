"""The machine and the limits under which this process runs: CPUs, memory, processes and GPUs."""
