"""Server benchmark: sends a workload to an HTTP server and measures latencies."""
