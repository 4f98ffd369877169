"""Fleet simulation: the production routing policies in front of simulated replicas."""
