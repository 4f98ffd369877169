"""KubernetesCluster: scales a Deployment or LeaderWorkerSet, so that the pods that were drained are those that go.

    scale(target, remove) ── 1. deletion cost of the pods of `remove` ──► pods
                          ── 2. number of replicas, if it is as read ───► scale subresource
                                                                          its controller starts or removes pods

The pod template of the workload says what a replica is; the arguments `spec` have no effect here.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

from chairlift.cluster.base import ReplicaSpec
from chairlift.cluster.cluster_replica import ClusterReplica
from chairlift.cluster.kubernetes.api_client import APIClient
from chairlift.cluster.kubernetes.api_resources import MALFORMED
from chairlift.cluster.kubernetes.deletion_costs import DeletionCosts
from chairlift.cluster.kubernetes.hpa_conflict import RivalAutoscaler
from chairlift.cluster.kubernetes.pod_removal_order import order_of_removal, target_without
from chairlift.cluster.kubernetes.pods import Pod
from chairlift.cluster.kubernetes.workload_reader import WorkloadReader, WorkloadView
from chairlift.cluster.kubernetes.workload_url import WorkloadKind, parse_workload_url
from chairlift.core.clock import Clock, SystemClock
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.web.registry.backoff import Backoff
from chairlift.web.registry.json_client import CALL_SECONDS
from chairlift.web.registry.kubernetes_client import SERVICE_ACCOUNT

log = logging.getLogger(__name__)

MAX_CONFLICTS = 6
"""Attempts of a change while others change the number of replicas, too."""

MAX_OBSERVE_READS = 20
OBSERVE_SECONDS = 0.1
"""Delay between reads while the workload's controller has not seen the last change; then a rollout may have begun."""


class KubernetesCluster:
    """The pods of a workload as replicas. Implements Cluster and RemovalOrder."""

    def __init__(
        self, text: str, *, environ: Mapping[str, str] | None = None, service_account: Path = SERVICE_ACCOUNT,
        timeout_seconds: float = CALL_SECONDS, clock: Clock | None = None, wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        """Create the cluster of a URL kubernetes://namespace/deployment/NAME or .../leaderworkerset/NAME.

        Options: port (name or number of the container port, default http), scheme, and server, token_file and ca_file,
        without which the API server is that of the pod's cluster. Raises ConfigError.
        """
        self._url = parse_workload_url(
            text, environ=os.environ if environ is None else environ, service_account=service_account
        )
        self._rng = random.Random() if rng is None else rng
        self._sleep = sleep
        self._api = APIClient(
            self._url.server, self._url.namespace, timeout_seconds=timeout_seconds, sleep=sleep, rng=self._rng
        )
        self._reader = WorkloadReader(self._api, self._url, wall_clock)
        self._costs = DeletionCosts(self._api)
        self._rival = RivalAutoscaler(self._api, self._url, SystemClock() if clock is None else clock)
        self._lock = asyncio.Lock()
        self._has_warned_of_spec = False

    async def list(self) -> Sequence[ClusterReplica]:
        """Return all replicas, the oldest first.

        It polls and does not watch: two reads from the API server's cache every second or two cost less than the code
        that keeps a second copy of the pods right, and nothing is stale after a cut.
        """
        view = await self._reader.read(from_cache=True)
        return [pod.replica for pod in view.pods]

    async def removable(self, replica_ids: Sequence[str]) -> Sequence[str]:
        """Return the replicas that go when as many are removed and these are preferred; () during a rollout."""
        view = await self._reader.read(from_cache=True)
        num_known = sum(pod.is_active and pod.replica.replica_id in replica_ids for pod in view.pods)
        if view.rollout:
            return ()
        order = order_of_removal(self._url.kind, view.pods, replica_ids)
        return [pod.replica.replica_id for pod in order[:num_known]]

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        """Raise the number of replicas by `count`.

        A number that is the wanted one when it is read again is not raised again: the answer to our write was lost.
        """
        self._warn_of_spec(spec)
        target: int | None = None

        def target_of(view: WorkloadView) -> int:
            nonlocal target
            if view.workload.replicas != target:  # the first read, or another one has set the number meanwhile
                target = view.workload.replicas + count
            return target

        await self._change(target_of, ())

    async def stop(self, replica_ids: Sequence[str]) -> None:
        """Lower the number of replicas such that these go. Raises ClusterFailed if others would go instead."""

        def target_of(view: WorkloadView) -> int:
            target = target_without(self._url.kind, view.workload.replicas, view.pods, replica_ids)
            num_stopped = view.workload.replicas - target
            leaving = order_of_removal(self._url.kind, view.pods, replica_ids)[:num_stopped]
            others = [pod.replica.replica_id for pod in leaving if pod.replica.replica_id not in replica_ids]
            if others and num_stopped and self._url.kind is WorkloadKind.LEADER_WORKER_SET:
                raise ClusterFailed(
                    f"the {self._url} can only remove its highest indexes: {', '.join(others)} would go instead of "
                    f"{', '.join(replica_ids)}"
                )
            return target

        await self._change(target_of, replica_ids)

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        """Set the number of replicas; see Cluster.

        Raises ClusterFailed for fewer replicas during a rollout: the workload would remove new pods, too.
        """
        self._warn_of_spec(spec)
        await self._change(lambda view: target, remove)

    async def release_failed(self) -> None:
        """Do nothing: the workload restarts its pods itself."""

    async def close(self) -> None:
        """Close the connections; replicas run on."""
        await self._api.close()

    def _warn_of_spec(self, spec: ReplicaSpec) -> None:
        if (spec.model or spec.arguments) and not self._has_warned_of_spec:
            self._has_warned_of_spec = True
            log.warning("model and options of replicas have no effect: the pod template of the %s has them", self._url)

    # -- changes ---------------------------------------------------------------------------------------------------

    async def _change(self, target_of: Callable[[WorkloadView], int], remove: Sequence[str]) -> None:
        """Set the number of replicas; read again and retry while others change it at the same time."""
        backoff = Backoff(self._rng, first_seconds=0.05, max_seconds=1.0)
        async with self._lock:
            for _ in range(MAX_CONFLICTS):
                view = await self._reader.read()
                if target_of(view) < view.workload.replicas and not view.workload.is_observed:
                    view = await self._read_observed()
                if await self._try_change(view, target_of(view), remove):
                    return
                await self._sleep(backoff.next_delay())
            await self._restore_costs(await self._reader.read(), ())
        raise ClusterFailed(
            f"the number of replicas of the {self._url} changed {MAX_CONFLICTS} times while it was set; does something "
            "else scale it?"
        )

    async def _read_observed(self) -> WorkloadView:
        """Return a view whose workload's controller has seen the last change. Raises ClusterFailed if it does not."""
        for _ in range(MAX_OBSERVE_READS):
            await self._sleep(OBSERVE_SECONDS)
            view = await self._reader.read()
            if view.workload.is_observed:
                return view
        seconds = MAX_OBSERVE_READS * OBSERVE_SECONDS
        raise ClusterFailed(f"the controller of the {self._url} has not seen its last change for {seconds:g} s")

    async def _try_change(self, view: WorkloadView, target: int, remove: Sequence[str]) -> bool:
        """Set costs and number; return False if the number has changed meanwhile."""
        replicas = view.workload.replicas
        if view.rollout and 0 < target < replicas:
            raise ClusterFailed(
                f"the {self._url} is being rolled out ({view.rollout}); it is scaled down from {replicas} to {target} "
                "when that is complete"
            )
        if target != replicas:
            await self._rival.refuse()
        lowered = self._choose_lowered(view, target, remove)
        await self._restore_costs(view, lowered)
        raised = [pod for pod in lowered if pod.previous_cost is None]
        try:
            await self._costs.lower(raised)
            if target != replicas:
                await self._set_replicas(replicas, target)
                log.info("the %s is scaled from %d to %d replicas", self._url, replicas, target)
        except ClusterFailed as error:
            status = error.details.get("status")
            if status == HTTPStatus.CONFLICT:
                return False
            if status is not None:  # without a status the change may have happened, and the costs are needed
                await self._costs.restore_after(error, raised)
            raise
        return True

    def _choose_lowered(self, view: WorkloadView, target: int, remove: Sequence[str]) -> Sequence[Pod]:
        """Return the pods that get the low cost, or keep it: those that were drained and go at this target."""
        if view.rollout:
            return ()
        active = [pod for pod in view.pods if pod.is_active]
        # an earlier call has lowered the number, and its controller has not removed these yet
        num_outstanding = max(0, len(active) - view.workload.replicas)
        outstanding = [pod.replica.replica_id for pod in active if pod.previous_cost is not None][:num_outstanding]
        drained = dict.fromkeys([*remove, *outstanding])
        leaving = order_of_removal(self._url.kind, active, drained)[: max(0, len(active) - target)]
        chosen = [pod for pod in leaving if pod.replica.replica_id in drained]
        if remove and len(chosen) < min(len(leaving), len(drained)):
            others = ", ".join(pod.name for pod in leaving if pod.replica.replica_id not in drained)
            log.warning("the %s removes %s instead of a replica that was drained", self._url, others)
        return () if self._url.kind is WorkloadKind.LEADER_WORKER_SET else chosen

    async def _restore_costs(self, view: WorkloadView, kept: Sequence[Pod]) -> None:
        """Give the pods that an earlier decision wanted to remove their former cost back."""
        names = {pod.name for pod in kept}
        stale = [pod for pod in view.pods if pod.is_active and pod.previous_cost is not None and pod.name not in names]
        await self._costs.restore(stale)

    async def _set_replicas(self, replicas: int, target: int) -> None:
        """Write the number of replicas. Raises ClusterFailed with status 409 if it is no longer `replicas`."""
        resource = self._url.kind.resource.scale
        scale = await self._api.get(resource, self._url.name)
        try:
            current = int((scale.get("spec") or {}).get("replicas") or 0)
            version = str(scale["metadata"]["resourceVersion"])
        except MALFORMED as error:
            raise ClusterFailed(f"the scale of the {self._url} is malformed: {type(error).__name__}: {error}") from None
        if current != replicas:
            raise ClusterFailed(f"the {self._url} has {current} replicas now", status=HTTPStatus.CONFLICT.value)
        metadata = {"name": self._url.name, "namespace": self._url.namespace, "resourceVersion": version}
        body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": target}}
        await self._api.replace(resource, self._url.name, body)
