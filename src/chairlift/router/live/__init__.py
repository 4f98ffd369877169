"""The live data of a router: replicas, and the timelines of requests."""
