"""Planning: the memory, the parallel sizes and the number of replicas that a model needs."""
