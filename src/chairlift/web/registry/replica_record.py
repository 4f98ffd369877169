"""ReplicaRecord: what a replica writes about itself into a registry."""

from dataclasses import dataclass

import orjson

MAX_META_CHARS = 512
"""Longest value of a service's metadata in Consul."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRecord:
    """A replica as it is registered.

    Attributes:
        url: scheme, host and port at which routers reach the replica.
        weight: share of the requests relative to the other replicas.
        models: names of the models that it serves.
        version: label for canaries.
        zone: label of where it runs.
        instance: id of this run of the process.
    """

    url: str
    weight: float
    models: tuple[str, ...]
    version: str
    zone: str
    instance: str

    @property
    def name(self) -> str:
        """Host and port: the same for each run of a replica at one address."""
        return self.url.partition("://")[2]

    def to_json(self) -> bytes:
        """Return the value of the replica's key in etcd."""
        return orjson.dumps({
            "url": self.url, "weight": self.weight, "models": self.models, "kind": "chairlift", "version": self.version,
            "zone": self.zone, "instance": self.instance,
        })  # fmt: skip

    def to_meta(self) -> dict[str, str]:
        """Return the metadata of the replica's service in Consul.

        Model names that are too long together are left out, and routers read them from /v1/models.
        """
        meta = {
            "url": self.url, "weight": f"{self.weight:g}", "models": ",".join(self.models), "kind": "chairlift",
            "version": self.version, "zone": self.zone, "instance": self.instance,
        }  # fmt: skip
        if len(meta["models"]) > MAX_META_CHARS or any("," in model for model in self.models):
            del meta["models"]
        return {name: value for name, value in meta.items() if value}
