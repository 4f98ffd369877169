"""FleetOwner: an actor whose name is that of the fleet, so that a fleet has one controller; take_fleet().

It is not detached: Ray ends it with the driver process that made it, so after a crash another controller gets the name.
Its functions are called only where ray is installed.
"""

import time
from typing import Any

TAKE_SECONDS = 10.0
"""Seconds that a controller waits for the name: that of one that was killed is free after some seconds."""

ANSWER_SECONDS = 2.0
RETRY_SECONDS = 0.2


class FleetOwner:
    """Says which controller has a fleet."""

    def __init__(self, token: str, description: str) -> None:
        self._token, self._description = token, description

    def owner(self) -> tuple[str, str]:
        """Return token and description of the controller."""
        return self._token, self._description


def take_fleet(fleet: str, namespace: str, token: str, description: str, ended: Any = None) -> Any:
    """Return the handle of the owner, which is made by this process. Raises RuntimeError if another one has the fleet.

    The owner of an earlier driver process of the same controller has the same token, and is replaced at once. So is
    `ended`, an owner of this process that has ended: Ray may keep the name of an actor on a dead node for long.
    The owner runs on the node of the driver process, so that the death of another node does not end it.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"namespace": namespace, "num_cpus": 0, "scheduling_strategy": here}
    name, until = f"chairlift:{fleet}:owner", time.monotonic() + TAKE_SECONDS
    while True:
        try:
            return ray.remote(FleetOwner).options(name=name, **options).remote(token, description)
        except ValueError:  # the name is taken
            other = "which does not answer"
        try:
            actor = ray.get_actor(name, namespace=namespace)
            if ended is not None and actor._actor_id == ended._actor_id:
                found = token
            else:
                found, other = ray.get(actor.owner.remote(), timeout=ANSWER_SECONDS)
            if found == token:
                ray.kill(actor, no_restart=True)
        except (ValueError, ray.exceptions.RayError):  # it has ended meanwhile, or does not answer
            pass
        if time.monotonic() >= until:
            raise RuntimeError(
                f"another controller, {other}, has the fleet {fleet!r}: stop that one, or give this one another name "
                "with --fleet-name"
            )
        time.sleep(RETRY_SECONDS)


def has_ended(owner: Any) -> bool:
    """Return whether an owner has ended, as it does with its node."""
    import ray

    unavailable: Any = getattr(ray.exceptions, "ActorUnavailableError", ())  # Ray 2.9 has no such error, and waits
    try:
        ray.get(owner.owner.remote(), timeout=ANSWER_SECONDS)
    except ray.exceptions.RayActorError as error:
        return not isinstance(error, unavailable)
    except ray.exceptions.RayError:
        return False
    return False
