"""Kubernetes as a cluster: the replicas are the pods of a Deployment, or the groups of a LeaderWorkerSet."""
