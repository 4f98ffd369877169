"""Moves of a request that waits for its first token to a replica that has become ready."""

import pytest

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.attempt_history import MAX_MOVES
from chairlift.router.attempts.events import FailureReason, TimerKind
from chairlift.router.attempts.retry_budget import RetryBudgetConfig
from chairlift.router.health.breaker import HealthOutcome
from support_attempts import STREAM, WHOLE
from support_attempts_script import FOREIGN, A, B, C, Script, of_type, script

FAULT, NEUTRAL, SUCCESS = HealthOutcome.FAULT, HealthOutcome.NEUTRAL, HealthOutcome.SUCCESS
NO_RETRIES = RetryBudgetConfig(share=0.0, min_concurrent=0, min_per_second=0.0)


def moving(**options: object) -> Script:
    """Return a request that waits at a while b was picked for it."""
    world = script(**options)
    world.begin(A)
    world.step(ev.ReplicaAvailable(1, "b"))
    world.pick(2, B)
    return world


@pytest.mark.parametrize("fields", [STREAM, WHOLE])
def test_a_request_waits_at_its_replica_until_it_was_sent_to_the_new_one(fields: object) -> None:
    world = script(fields, budget=NO_RETRIES)
    world.begin(A)
    assert world.step(ev.ReplicaAvailable(1, "b")) == [act.PickReplica(2, frozenset({("a", "1")}), "", "b")]
    world.pick(2, B)
    assert set(world.connections) == {1, 2} and not world.outcomes
    world.step(ev.RequestSent(2))
    assert set(world.connections) == {2} and world.outcomes == {1: NEUTRAL} and world.released == {1}
    world.receive_all(2)
    assert world.final == act.CompleteResponse(2) and world.outcomes == {1: NEUTRAL, 2: SUCCESS}
    assert not world.budget.active_retries and not world.budget.num_rejected


def test_the_first_token_of_the_old_replica_ends_the_move() -> None:
    for picked in (False, True):
        world = script()
        world.begin(A)
        world.step(ev.ReplicaAvailable(1, "b"))
        if picked:
            world.pick(2, B)
        world.receive_all(1)
        assert world.final == act.CompleteResponse(1) and world.sent == b"".join(world.expected_stream())
        assert 2 not in world.connections and (not picked or world.outcomes[2] is NEUTRAL)


def test_streams_of_other_servers_move_before_their_first_bytes() -> None:
    world = script()
    world.begin(FOREIGN)
    world.step(ev.ReplicaAvailable(1, "a"))
    world.pick(2, A)
    world.step(ev.RequestSent(2))
    world.receive_all(2)
    assert world.outcomes == {1: NEUTRAL, 2: SUCCESS}


@pytest.mark.parametrize("failure", [
    ev.ConnectFailed(2), ev.AttemptBroken(2, FailureReason.RESET), ev.ResponseReceived(2, 429, 1.0),
    ev.ResponseReceived(2, 500),
])  # fmt: skip
def test_a_new_replica_that_fails_costs_neither_an_attempt_nor_the_budget(failure: ev.Event) -> None:
    world = moving(budget=NO_RETRIES)
    world.step(ev.RequestSent(2))
    world.step(failure)
    assert world.machine.history.num_failed == 0 and not world.budget.num_rejected
    assert world.picking == {3: act.PickReplica(3, frozenset({("b", "1")}))}, "the first replica may be picked again"
    world.begin(A, 3)
    world.receive_all(3)
    assert world.final == act.CompleteResponse(3)


def test_a_new_replica_that_refuses_the_connection_leaves_the_request_where_it_waits() -> None:
    world = moving()
    world.step(ev.ConnectFailed(2))
    assert world.outcomes == {2: FAULT} and not world.picking
    world.receive_all(1)
    assert world.final == act.CompleteResponse(1)


def test_without_a_place_on_the_new_replica_nothing_happens() -> None:
    world = script()
    world.begin(A)
    world.step(ev.ReplicaAvailable(1, "b"))
    del world.picking[2]
    assert world.step(ev.NoReplica(2)) == []
    world.receive_all(1)
    assert world.final == act.CompleteResponse(1)


def test_a_replica_that_is_lost_during_a_move_is_replaced_by_the_new_one_or_any_other() -> None:
    world = moving()
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    assert world.outcomes == {1: FAULT} and not world.picking
    world.step(ev.RequestSent(2))
    world.receive_all(2)
    assert world.final == act.CompleteResponse(2)
    world = script(budget=NO_RETRIES)
    world.begin(A)
    world.step(ev.ReplicaAvailable(1, "b"))
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    del world.picking[2]
    world.step(ev.NoReplica(2))
    assert world.picking == {3: act.PickReplica(3, frozenset({("a", "1")}))}


def test_a_moved_stream_that_breaks_has_failed_once() -> None:
    world = moving()
    world.step(ev.RequestSent(2))
    world.receive(2, 2)
    world.step(ev.AttemptBroken(2, FailureReason.RESET))
    assert world.machine.history.num_failed == 1
    world.begin(C, 3)
    world.receive_all(3)
    assert world.sent == b"".join(world.expected_stream())


def test_a_request_moves_a_bounded_number_of_times_and_once_at_a_time() -> None:
    world = script()
    world.begin(A)
    for number, replica in enumerate((B, C), start=1):
        world.step(ev.ReplicaAvailable(number, replica.replica_id))
        assert world.step(ev.ReplicaAvailable(number, "x")) == [], "it moves already"
        world.pick(number + 1, replica)
        world.step(ev.RequestSent(number + 1))
    assert world.machine.history.num_moves == MAX_MOVES == 2
    assert world.machine.movable_attempt is None and world.step(ev.ReplicaAvailable(3, "a")) == []


def test_what_has_a_token_is_not_sent_or_shows_no_tokens_does_not_move() -> None:
    world = script()
    assert world.step(ev.ReplicaAvailable(1, "b")) == []
    world.pick(1, A)
    assert world.step(ev.ReplicaAvailable(1, "b")) == []
    world.step(ev.RequestSent(1))
    assert world.step(ev.ReplicaAvailable(7, "b")) == [], "another attempt"
    world.receive(1, 1)
    assert world.machine.movable_attempt is not None, "a role is no token"
    world.receive(1, 1)
    assert world.step(ev.ReplicaAvailable(1, "b")) == []
    foreign = script(WHOLE)
    foreign.begin(FOREIGN)
    assert foreign.step(ev.ReplicaAvailable(1, "b")) == []


def test_a_hedged_request_does_not_move_and_a_moving_one_is_not_hedged() -> None:
    world = script(hedges=True)
    world.begin(A)
    world.fire(TimerKind.HEDGE, 1)
    world.begin(B, 2)
    assert world.step(ev.ReplicaAvailable(1, "c")) == []
    world = moving(hedges=True)
    assert world.fire(TimerKind.HEDGE, 1) == []


def test_a_drain_during_a_move_ends_with_one_attempt() -> None:
    world = moving()
    world.step(ev.ReplicaDraining(1))
    assert world.outcomes == {1: NEUTRAL} and set(world.connections) == {2}
    world = script()
    world.begin(A)
    world.step(ev.ReplicaAvailable(1, "b"))
    assert world.step(ev.ReplicaDraining(1)) == []
    world.begin(B, 2, num_tokens=1)
    assert world.outcomes == {1: NEUTRAL}
    world.receive_all(2)
    assert world.sent == b"".join(world.expected_stream())


def test_a_client_that_is_gone_ends_both_attempts_of_a_move() -> None:
    world = moving()
    actions = world.step(ev.ClientDisconnected())
    assert of_type(actions, act.AbortAttempt) == [act.AbortAttempt(1), act.AbortAttempt(2)]
    assert world.released == {1, 2} and not world.timers and not world.budget.active_requests
