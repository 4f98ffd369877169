"""Clients of etcd and Consul: a replica registers there, and the router finds it there."""
