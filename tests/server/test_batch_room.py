"""BatchRoom: requests of batches begin while the engine keeps no other request waiting and has a slot free."""

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.server.batch_room import MAX_UNSTARTED, BatchRoom
from chairlift.server.replica import Replica
from support_config import make_server_config


@pytest.mark.parametrize(
    ("engine_counts", "num_open", "num_unstarted", "num_unadmitted", "expected"),
    [
        ((0, 0), 0, 0, 0, True), ((0, 3), 3, 0, 0, True), ((0, 3), 3, MAX_UNSTARTED - 1, 0, True),
        ((0, 3), 3, MAX_UNSTARTED, 0, False),  # their prompts come before those of other requests
        ((1, 3), 3, 0, 0, False),  # another request waits
        ((1, 3), 3, 1, 0, True),  # it is one of a batch
        ((2, 3), 3, 1, 0, False), ((0, 5), 5, 0, 0, True),
        ((0, 6), 6, 0, 0, False),  # a quarter of the slots is left free
        ((1, 3), 3, 1, 1, False), ((0, 3), 3, 2, 2, True), ((0, 3), 3, 3, 3, False),  # they take slots in a moment
    ],
)  # fmt: skip
def test_where_there_is_room(
    engine_counts: tuple[int, int], num_open: int, num_unstarted: int, num_unadmitted: int, expected: bool
) -> None:  # fmt: skip
    replica = Replica(make_server_config("fake"))
    replica.admission.max_running = 8
    permits = [replica.admission.admit(1) for _ in range(num_open)]
    replica.admission.engine_counts = engine_counts
    room = BatchRoom(replica)
    assert len(permits) == num_open and room.has_room(num_unstarted, num_unadmitted) is expected
    assert not room.is_ready()
    replica.lifecycle.mark_started(lambda: ReplicaState.READY)
    assert room.is_ready()
