"""Resource: a kind of object of the Kubernetes API that this package reads or writes, and its paths."""

from dataclasses import dataclass, replace
from urllib.parse import quote

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""Errors of reading the fields of an object that is not as its kind has it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, or a part of it.

    Attributes:
        group: API group; "" for the core API.
        version: version of the group.
        plural: name in paths and roles.
        subresource: part of the object, such as "scale"; "" for the whole.
    """

    group: str
    version: str
    plural: str
    subresource: str = ""

    @property
    def role_name(self) -> str:
        """The name that a Role's rule has for it."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def scale(self) -> "Resource":
        """Its scale subresource, which holds the number of replicas."""
        return replace(self, subresource="scale")

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of one object, or of the list in a namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root, "namespaces", quote(namespace, safe=""), self.plural]
        parts += [quote(each, safe="") for each in (name, self.subresource) if each]
        return "/".join(parts)


PODS = Resource("", "v1", "pods")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
REPLICA_SETS = Resource("apps", "v1", "replicasets")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets")
HORIZONTAL_AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers")
