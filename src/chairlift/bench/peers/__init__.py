"""Peers: other engines that run the same workloads as baselines; Chairlift itself needs none of them."""
