"""The router's decisions over seeded histories of a fleet: crashes, stalls, full replicas, outages, drains, moves."""

import pytest

from support_fleet_histories import FleetHistory
from support_shares import FULL

NUM_HISTORIES = 10_000 if FULL else 200
SHARDS = 8


@pytest.mark.share(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_request_gets_one_answer_and_nothing_stays_open(shard: int) -> None:
    """No attempt goes to an ejected replica while another is healthy; each client's text is that of an uncut run."""
    num_moves = 0
    for seed in range(shard, NUM_HISTORIES, SHARDS):
        history = FleetHistory(seed)
        try:
            history.run()
            history.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        num_moves += history.num_moves
    assert num_moves > NUM_HISTORIES // SHARDS // 10, "hardly any request has moved to a replica that became ready"


def test_client_errors_never_trip_a_breaker() -> None:
    for seed in range(NUM_HISTORIES // 8):
        history = FleetHistory(seed, only_client_errors=True)
        history.run()
        history.check()
