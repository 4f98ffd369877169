"""The fleet: a router, an autoscaler and a cluster together, and what lies between them; no engine and no torch."""
