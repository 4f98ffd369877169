"""RayCalls: every call that a controller makes to Ray, in the driver process. They block, some of them for ever.

The module is imported only where ray is installed.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.util.placement_group import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from chairlift.cluster.ray.fleet_owner import has_ended, take_fleet
from chairlift.cluster.ray.placement_group_name import GroupName
from chairlift.cluster.ray.replica_actor import ReplicaActor
from chairlift.cluster.ray.snapshot import ActorReport, ActorState, RayGroup, RayNode, RaySnapshot

ANSWER_SECONDS = 1.0
"""Actors that do not answer within this time are silent."""

STOP_SECONDS = 5.0
"""An actor that has not noted within this time that it is to stop is asked again later."""

MAX_REASON = 300
"""Characters of the reason why an actor died."""

# Ray 2.9 has no such error, and waits.
_UNAVAILABLE: Any = getattr(ray.exceptions, "ActorUnavailableError", ())


class RayCalls:
    """A connection to Ray. Each public method is a call that the driver process accepts."""

    def __init__(self) -> None:
        self._fleet, self._namespace = "", ""
        self._controller: tuple[str, str] = "", ""  # token and description
        self._owner: Any = None
        self._handles: dict[str, Any] = {}  # by the group's name; the handle of a dead actor knows why it died
        self._open: dict[str, Any] = {}  # calls of `status` without an answer; a silent actor gets no second one

    def connect(self, *, address: str, namespace: str, fleet: str, token: str, description: str) -> None:
        """Connect to a Ray that runs, and become the one controller of the fleet; no Ray is started here.

        Raises RuntimeError while another controller has the fleet. `token` tells this controller from all others.
        """
        self._fleet, self._namespace, self._controller = fleet, namespace, (token, description)
        options: dict[str, Any] = {} if address.startswith("ray://") else {"log_to_driver": False}
        ray.init(address=address, namespace=namespace, **options)
        self._owner = take_fleet(fleet, namespace, token, description)

    def snapshot(self) -> RaySnapshot:
        """Return Ray's nodes, and the fleet's placement groups and actors."""
        if has_ended(self._owner):
            self._owner = take_fleet(self._fleet, self._namespace, *self._controller, self._owner)
        nodes = [
            RayNode(
                node_id=each["NodeID"], address=each["NodeManagerAddress"], is_alive=each["Alive"],
                resources=each["Resources"],
            )
            for each in ray.nodes()
        ]  # fmt: skip
        groups = [
            RayGroup(
                name=each["name"], state=each["state"], bundle=next(iter(each["bundles"].values()), {}),
                node_id=next(iter(each["bundles_to_node_id"].values()), ""),
            )
            for each in placement_group_table().values()
            if each["state"] != "REMOVED" and GroupName.parse(each["name"], self._fleet)
        ]  # fmt: skip
        for name in self._handles.keys() - {each.name for each in groups}:
            self._forget(name)
        return RaySnapshot(
            nodes=nodes, groups=groups, actors=self._reports(each.name for each in groups if each.state == "CREATED")
        )

    def create(
        self, *, group: str, bundle: dict[str, float], node_id: str, runtime_env: dict[str, Any], launch: dict[str, Any]
    ) -> bool:
        """Create a placement group and its actor; False if another controller has taken the actor's name."""
        place = placement_group(
            [bundle], strategy="STRICT_PACK", name=group, lifetime="detached", _soft_target_node_id=node_id or None
        )
        others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        options: dict[str, Any] = {"runtime_env": runtime_env} if runtime_env else {}
        actor = ray.remote(ReplicaActor).options(
            name=self._actor_name(group), namespace=self._namespace, lifetime="detached", max_restarts=0,
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), resources=others or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=0), **options,
        )  # fmt: skip
        try:
            self._handles[group] = actor.remote(**launch)
        except ValueError:  # the name is taken
            remove_placement_group(place)
            return False
        return True

    def stop(self, *, group: str, timeout_seconds: float) -> None:
        """Ask an actor to stop its replica, and wait until it has noted it."""
        handle = self._handle(group)
        if handle is not None:
            with suppress(ray.exceptions.RayActorError):  # it has ended meanwhile
                ray.get(handle.stop.remote(timeout_seconds), timeout=STOP_SECONDS)

    def remove(self, *, group: str) -> None:
        """Kill an actor, if there is one, and remove its placement group."""
        handle = self._handle(group)
        if handle is not None:
            ray.kill(handle, no_restart=True)
        with suppress(ValueError):  # it is removed
            remove_placement_group(get_placement_group(group))
        self._forget(group)

    def _reports(self, groups: Iterable[str]) -> dict[str, ActorReport]:
        result, asked = {}, {}
        for group in groups:
            handle = self._handle(group)
            if handle is None:
                result[group] = ActorReport(state=ActorState.ABSENT)
                continue
            if group not in self._open:
                self._open[group] = handle.status.remote()
            asked[group] = self._open[group]
        calls = list(asked.values())
        ready = set(ray.wait(calls, num_returns=len(calls), timeout=ANSWER_SECONDS)[0]) if calls else set()
        for group, call in asked.items():
            result[group] = self._answer(group, call) if call in ready else ActorReport(state=ActorState.SILENT)
        return result

    def _answer(self, group: str, call: Any) -> ActorReport:
        del self._open[group]
        try:
            return msgspec.convert(ray.get(call), ActorReport)
        except _UNAVAILABLE:
            return ActorReport(state=ActorState.SILENT)
        except ray.exceptions.RayError as error:  # the actor died, or its runtime environment cannot be made
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1].partition(" Some common causes include")[0] if lines else type(error).__name__
            return ActorReport(state=ActorState.DEAD, reason=reason[:MAX_REASON])

    def _handle(self, group: str) -> Any:
        """Return the handle of a group's actor; None if there is no such actor."""
        if group not in self._handles:
            try:
                self._handles[group] = ray.get_actor(self._actor_name(group), namespace=self._namespace)
            except ValueError:
                return None
        return self._handles[group]

    def _actor_name(self, group: str) -> str:
        name = GroupName.parse(group, self._fleet)
        assert name is not None, group
        return name.actor_name

    def _forget(self, group: str) -> None:
        self._handles.pop(group, None)
        self._open.pop(group, None)
