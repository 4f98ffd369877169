"""CPU benchmark: Chairlift and other engines in turn, workloads W1 to W3, real model shapes (`make bench-cpu`)."""
