"""RivalAutoscaler: finds a HorizontalPodAutoscaler of the same workload, which would undo every change."""

import logging
from typing import Any

from chairlift.cluster.kubernetes.api_client import APIClient
from chairlift.cluster.kubernetes.api_resources import HORIZONTAL_AUTOSCALERS, MALFORMED
from chairlift.cluster.kubernetes.workload_url import WorkloadURL
from chairlift.core.clock import Clock
from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
"""Seconds for which the answer that there is none is believed."""


class RivalAutoscaler:
    """The check for another autoscaler; KEDA makes a HorizontalPodAutoscaler, too."""

    def __init__(self, api: APIClient, url: WorkloadURL, clock: Clock) -> None:
        """Create the check for one workload."""
        self._api, self._url, self._clock = api, url, clock
        self._checked_at: float | None = None

    async def refuse(self) -> None:
        """Raise ClusterFailed if there is one. Where it may not look, it warns and goes on."""
        now = self._clock.now()
        if self._checked_at is not None and now - self._checked_at < CHECK_SECONDS:
            return
        try:
            found = await self._api.list(HORIZONTAL_AUTOSCALERS)
        except ClusterDenied as error:
            log.warning("cannot see whether another autoscaler scales the %s: %s", self._url, error)
            found = []
        for each in found:
            if _target_of(each) == (self._url.kind.value, self._url.name):
                raise ClusterFailed(
                    f"the HorizontalPodAutoscaler {each['metadata']['name']} scales the {self._url}, too: both "
                    "would undo the other's changes; delete it (or its KEDA ScaledObject), or stop this one"
                )
        self._checked_at = now


def _target_of(body: Any) -> tuple[Any, Any] | None:
    """Return kind and name of what an autoscaler scales; None if it does not say it."""
    try:
        return body["spec"]["scaleTargetRef"]["kind"], body["spec"]["scaleTargetRef"]["name"]
    except MALFORMED:
        return None
