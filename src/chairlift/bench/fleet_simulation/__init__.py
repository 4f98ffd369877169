"""Fleet simulation: the production routing policy and autoscaler over thousands of simulated replicas."""
