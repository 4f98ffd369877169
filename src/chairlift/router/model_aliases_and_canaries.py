"""ModelRoutes: which pool of replicas serves a model name, with aliases and weighted canaries.

    chat-large=llama-70b:95,llama-70b-next:5     95 % of the sessions of chat-large go to the pool llama-70b
    gpt-4o=llama-70b                             an alias

A pool is the set of replicas that serve a model of this name. A route may lead to another route, or be a canary in
front of the pool of its own name: `llama-70b=llama-70b:95,llama-70b-next:5`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite, log
from typing import Self

from chairlift.core.errors import ConfigError, ModelNotFound

MAX_CANARY_WEIGHT = 1e6

Targets = tuple[tuple[str, float], ...]
"""Model names with their weights."""


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """The routes from public model names to the models of pools; a name without a route is a pool's own.

    Raises ConfigError for a route that leads back to itself.
    """

    routes: Mapping[str, Targets]

    def __post_init__(self) -> None:
        for name in self.routes:
            self._check_cycle(name, ())

    @classmethod
    def parse(cls, specs: Iterable[str]) -> Self:
        """Return the routes of texts like `chat-large=llama-70b:95,llama-70b-next:5`. Raises ConfigError."""
        routes: dict[str, Targets] = {}
        for spec in specs:
            name, targets = _parse_route(spec)
            if name in routes:
                raise ConfigError(f"model route {spec!r}: {name!r} has a route already; join their targets by commas")
            routes[name] = targets
        return cls(routes)

    def names(self, pools: Collection[str]) -> list[str]:
        """Return every model name that a client may use now, sorted: pools, and routes that lead to one."""
        pool_names = set(pools) - self.routes.keys()
        return sorted(pool_names.union(name for name in self.routes if self._live_targets(name, pools)))

    def pools_of(self, name: str, pools: Collection[str]) -> set[str]:
        """Return the pools that a request of a model name may go to."""
        if name not in self.routes:
            return {name}
        targets = [target for target, _ in self._live_targets(name, pools)]
        return {pool for each in targets for pool in ({each} if each == name else self.pools_of(each, pools))}

    def choose(self, model: str, key: str, pools: Collection[str]) -> str:
        """Return the name of the pool for a request: an alias resolved, a canary chosen by the hash of `key`.

        key: the session, so that it stays with one version, or the request's id where there is none.
        pools: the pools that have a replica, by model name. A target without one gives its share to the others.

        Raises ModelNotFound, which lists the names that exist.
        """
        name = model
        while targets := self._live_targets(name, pools):
            target = _choose_target(name, key, targets)
            if target == name:
                break
            name = target
        if name in pools and (targets or name not in self.routes):
            return name
        raise ModelNotFound(model, ", ".join(self.names(pools)) or "no models, as no replica is ready")

    def _live_targets(self, name: str, pools: Collection[str]) -> Targets:
        """Return the targets of a route that lead to a pool, () where there is no route."""
        return tuple(
            (target, weight)
            for target, weight in self.routes.get(name, ())
            if weight > 0
            and (self._live_targets(target, pools) if target in self.routes and target != name else target in pools)
        )

    def _check_cycle(self, name: str, before: tuple[str, ...]) -> None:
        if name in before:
            raise ConfigError(f"model route {name!r} leads back to itself: {' → '.join((*before, name))}")
        for target in (target for target, _ in self.routes.get(name, ()) if target != name):
            self._check_cycle(target, (*before, name))


def _choose_target(name: str, key: str, targets: Targets) -> str:
    """Choose by weighted rendezvous hashing: a session moves only to a target that gained weight, or from one gone."""

    def score(target: tuple[str, float]) -> float:
        digest = sha256(f"{name}\0{key}\0{target[0]}".encode("utf-8", "surrogatepass")).digest()
        return -target[1] / log((int.from_bytes(digest[:6], "little") + 0.5) / 2**48)

    return max(targets, key=score)[0]


def _parse_route(spec: str) -> tuple[str, Targets]:
    name, equals, text = spec.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"model route {spec!r} must look like chat-large=llama-70b:95,llama-70b-next:5")
    targets: dict[str, float] = {}
    for part in text.split(","):
        target, weight = _parse_target(spec, part.strip())
        if target in targets:
            raise ConfigError(f"model route {spec!r} names {target!r} twice")
        targets[target] = weight
    if not any(targets.values()):
        raise ConfigError(f"model route {spec!r} gives every model the weight 0, at least one must have more")
    return name, tuple(targets.items())


def _parse_target(spec: str, part: str) -> tuple[str, float]:
    """Return model and weight; a model name may have colons, so only a number behind the last one is a weight."""
    target, colon, text = part.rpartition(":")
    try:
        weight = float(text) if colon else 1.0
    except ValueError:
        target, colon, weight = part, "", 1.0
    target = (target if colon else part).strip()
    if not target:
        raise ConfigError(f"model route {spec!r} has a target without a model name")
    if not isfinite(weight) or not 0 <= weight <= MAX_CANARY_WEIGHT:
        raise ConfigError(
            f"model route {spec!r}: weight of {target!r} must be between 0 and {MAX_CANARY_WEIGHT:g}, got {weight:g}"
        )
    return target, weight
