"""Workloads: what requests a benchmark sends, generated from a seed or read from a trace."""
