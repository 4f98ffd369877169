"""Autoscaler: decides from the load of a pool how many replicas it needs; imports core only."""
