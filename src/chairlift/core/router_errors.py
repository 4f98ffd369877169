"""Errors of routers, and of the registries in which they find replicas.

    ├── DiscoveryFailed             a source of replicas is down, or its answer is not valid
    └── ReplicaFailed               no replica completed the request that a router sent
        └── ReplicaTimeout          none did in time

They are branches of the tree in errors.py.
"""

from chairlift.core.errors import ChairliftError


class DiscoveryFailed(ChairliftError):
    """A source of replicas (etcd, Consul, DNS, Kubernetes, a file) is down, or its answer is not valid."""

    code = "discovery_failed"
    retryable = True


class ReplicaFailed(ChairliftError):
    """No replica has completed a request that a router sent; the message names the last failure."""

    code = "replica_failed"
    retryable = True


class ReplicaTimeout(ReplicaFailed):
    """No replica has completed a request of a router in time."""

    code = "replica_timeout"
