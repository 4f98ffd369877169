"""DeletionCosts: sets the deletion cost of pods that should go, and gives them their former one back."""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from chairlift.cluster.kubernetes.api_client import APIClient
from chairlift.cluster.kubernetes.api_resources import PODS
from chairlift.cluster.kubernetes.pod_removal_order import LOW_COST
from chairlift.cluster.kubernetes.pods import DELETION_COST, PREVIOUS_COST, Pod
from chairlift.core.cluster_errors import ClusterFailed

log = logging.getLogger(__name__)


class DeletionCosts:
    """Annotations of pods. The former cost stands beside ours, so that another process can give it back."""

    def __init__(self, api: APIClient) -> None:
        """Create it over a client."""
        self._api = api

    async def lower(self, pods: Sequence[Pod]) -> None:
        """Give pods the cost LOW_COST; pods that are gone are left out. Raises ClusterFailed."""
        for pod in pods:
            previous = (pod.deletion_cost or "") if pod.previous_cost is None else pod.previous_cost
            await self._annotate(pod, str(LOW_COST), previous)

    async def restore(self, pods: Sequence[Pod]) -> None:
        """Give pods the cost that they had before. Raises ClusterFailed."""
        for pod in pods:
            previous = pod.deletion_cost if pod.previous_cost is None else pod.previous_cost
            await self._annotate(pod, previous or None, None)

    async def restore_after(self, error: ClusterFailed, pods: Sequence[Pod]) -> None:
        """Restore costs because of an error, which is more important than one of the restoring."""
        try:
            await self.restore(pods)
        except ClusterFailed as second:
            names = ", ".join(pod.name for pod in pods)
            log.warning("the deletion cost of %s stays low until the next change: %s (%s)", names, second, error)

    async def _annotate(self, pod: Pod, cost: str | None, previous: str | None) -> None:
        metadata = {"uid": pod.uid, "annotations": {DELETION_COST: cost, PREVIOUS_COST: previous}}
        try:
            await self._api.patch(PODS, pod.name, {"metadata": metadata})
        except ClusterFailed as error:
            if not _is_gone(error):
                raise


def _is_gone(error: ClusterFailed) -> bool:
    """Return whether a patch failed because the pod no longer exists, or another one has its name."""
    status = error.details.get("status")
    # the API server takes another uid for an attempt to change the uid
    is_another_pod = status == HTTPStatus.UNPROCESSABLE_ENTITY and "metadata.uid" in error.message
    return status == HTTPStatus.NOT_FOUND or is_another_pod
