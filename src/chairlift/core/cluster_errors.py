"""Errors of clusters, which start and stop replicas.

    └── ClusterFailed               a cluster cannot be reached, or does not do what it is asked for
        └── ClusterDenied           it rejects the credentials, or they do not permit the action

They are a branch of the tree in errors.py.
"""

from chairlift.core.errors import ChairliftError


class ClusterFailed(ChairliftError):
    """A cluster (local processes, Ray, Kubernetes, a webhook) cannot be reached or does not do what it is asked for."""

    code = "cluster_failed"
    retryable = True


class ClusterDenied(ClusterFailed):
    """A cluster rejects the credentials, or they do not permit the action; the message names both."""

    code = "cluster_denied"
    retryable = False
