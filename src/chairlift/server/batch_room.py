"""BatchRoom: whether the engine of a replica has room for a request of a batch."""

from chairlift.core.load_report import ReplicaState
from chairlift.server.replica import Replica

MAX_UNSTARTED = 4
"""Requests of batches without a first token, at most: a request that comes behind them waits for their prompts."""


USED_SLOTS = 0.75
"""Share of the engine's slots that requests of batches fill; the others are for requests that come meanwhile."""


class BatchRoom:
    """A Room: requests of batches fill slots that the engine has free."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def is_ready(self) -> bool:
        """See Room."""
        return self._replica.lifecycle.state is ReplicaState.READY

    def has_room(self, num_unstarted: int, num_unadmitted: int) -> bool:
        """See Room: the engine keeps no other request waiting, and has enough free slots."""
        admission = self._replica.admission
        num_others_waiting = max(0, admission.engine_counts[0] - (num_unstarted - num_unadmitted))
        is_free = admission.open_requests + num_unadmitted < USED_SLOTS * admission.max_running
        return num_unstarted < MAX_UNSTARTED and not num_others_waiting and is_free
