"""Clients of etcd, Consul and Kubernetes: where replicas register, are found and are started."""
