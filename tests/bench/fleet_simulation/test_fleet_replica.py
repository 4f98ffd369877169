"""FleetReplica: open requests are known at once and the rest by reports; one that is taken back counts no more."""

import pytest

from chairlift.bench.fleet_simulation.fleet_replica import FleetReplica
from chairlift.bench.fleet_simulation.sim_replica_settings import SimReplicaSettings
from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from chairlift.core.load_report import ReplicaState

MACHINE = SimReplicaSettings()
SPEED = MACHINE.prefill_speed


def replica(max_running: int = 4) -> FleetReplica:
    made = FleetReplica("r", MACHINE.make_model(0), 0.0, prefill_speed=SPEED, max_running=max_running)
    made.state = ReplicaState.READY
    return made


def request(at: float, prompt_tokens: int = 400, routed_tokens: int = 300) -> SimRequest:
    return SimRequest(0, at, prompt_tokens, 2, routed_tokens=routed_tokens)


def test_open_requests_are_known_at_once_and_the_rest_by_reports() -> None:
    server = replica()
    server.candidate(0.0)
    server.open(request(0.1), 0.1)
    now, later = server.candidate(0.1), server.candidate(1.0)
    assert (now.open_requests, now.pending_prefill_tokens, now.waiting_tokens) == (1, 300, 0)
    assert (later.waiting_tokens, later.running_requests) == (400, 0)
    assert later.expected_wait_seconds == pytest.approx(400 / SPEED)


def test_a_first_token_and_the_end_are_counted() -> None:
    server, served = replica(), request(0.0)
    server.open(served, 0.0)
    served.first_token_at = 0.5
    server.record_first_token(served)
    sample = server.sample(0.5)
    assert (sample.waiting_requests, sample.waiting_tokens, sample.running_requests) == (0, 0, 1)
    server.record_end(served, 3.0)
    candidate = server.candidate(3.0)
    assert (candidate.load, candidate.pending_prefill_tokens, server.num_requests) == (0.0, 0, 1)


def test_requests_beyond_the_limit_wait_for_ends() -> None:
    server = replica(max_running=2)
    first = request(0.0)
    first.first_token_at = 1.0
    for _ in range(5):
        server.open(request(0.0, prompt_tokens=0), 0.0)
    server.record_first_token(first)
    server.record_end(first, 8.0)  # took 8 s, of 4 open requests 2 run
    assert server.expected_wait_seconds == pytest.approx(2 * 8.0 / 2, abs=1600 / SPEED)


def test_a_sample_has_rates_since_the_last_one_and_nothing_while_it_starts() -> None:
    server = replica()
    server.open(SimRequest(0, 0.0, 16, 10_000), 0.0)
    server.model.advance()
    end = server.model.next_event_at
    server.model.advance()
    server.sample(end)
    sample = server.sample(end + 1.0)
    assert sample.cpu_ratio == pytest.approx(1.0) and (sample.output_tokens_per_second or 0) > 50
    server.state = ReplicaState.STARTING
    assert server.sample(9.0).waiting_requests is None and server.sample(9.0).age_seconds == 9.0


def test_a_request_that_is_taken_back_is_counted_no_more() -> None:
    server = replica(max_running=4)
    first, second = (SimRequest(n, 0.0, 400, 2, routed_tokens=300) for n in range(2))
    server.open(first, 0.0)
    server.model.advance()  # the first one starts
    server.open(second, 0.0)
    queue = server.queue(2.0)
    assert (queue.open_requests, queue.waiting_requests, queue.free_places) == (2, 2, 2)
    assert queue.expected_wait_seconds == pytest.approx(800 / SPEED)
    assert server.withdraw(second) and not server.withdraw(first)
    after, candidate = server.queue(4.0), server.candidate(4.0)
    assert (after.open_requests, after.waiting_requests, after.free_places) == (1, 1, 3)
    assert (candidate.pending_prefill_tokens, candidate.waiting_tokens) == (300, 400)
