"""Candidate: its load counts open requests of this router or running ones of all, by weight."""

from chairlift.router.policies.candidate import Candidate


def test_load_counts_open_requests_of_this_router_or_running_ones_of_all_by_weight() -> None:
    assert Candidate(replica_id="a", open_requests=6, weight=2.0).load == 3.0
    assert Candidate(replica_id="a", open_requests=1, running_requests=5).load == 5.0
