"""Peers: other engines that run our workloads, measured the way ours is; none of them is needed by the product."""
