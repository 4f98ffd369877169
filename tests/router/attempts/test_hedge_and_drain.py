"""Hedge and drain: of two attempts at once one is delivered; the deadline, and a client that is gone."""

import pytest

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.events import FailureReason, TimerKind
from chairlift.router.health.breaker import HealthOutcome
from support_attempts import STREAM, WHOLE, chunk
from support_attempts_script import FOREIGN, A, B, C, Script, of_type, script
from support_shares import for_each

FAULT, NEUTRAL, SUCCESS = HealthOutcome.FAULT, HealthOutcome.NEUTRAL, HealthOutcome.SUCCESS


def hedged() -> Script:
    """Return a request whose first attempt is late and whose second one was sent."""
    world = script(hedges=True)
    world.begin(A)
    assert (TimerKind.HEDGE, 1) in world.timers
    (pick,) = world.fire(TimerKind.HEDGE, 1)
    assert pick == act.PickReplica(2, frozenset({("a", "1")})) and pick.purpose == "hedge"
    world.begin(B, 2)
    return world


@pytest.mark.parametrize(("winner", "loser"), [(1, 2), (2, 1)])
def test_the_first_token_wins_and_the_other_attempt_is_aborted_without_effect_on_health(
    winner: int, loser: int
) -> None:
    world = hedged()
    world.apply(("next", loser))  # a role is no token
    assert not world.outcomes
    world.apply(("next", winner))
    world.apply(("next", winner))
    assert world.outcomes == {loser: NEUTRAL}
    assert loser in world.released and loser not in world.connections
    world.now = 9.0
    world.apply(("next", winner))
    world.apply(("next", winner))
    world.apply(("next", winner))
    assert world.sent == b"".join(world.expected_stream())
    assert world.outcomes[winner] is SUCCESS


@pytest.mark.parametrize("failing", [1, 2])
def test_when_one_of_two_attempts_fails_the_other_goes_on_alone(failing: int) -> None:
    world = hedged()
    world.step(ev.AttemptBroken(failing, FailureReason.RESET))
    assert world.outcomes == {failing: FAULT}
    assert not world.picking
    world.step(ev.AttemptBroken(3 - failing, FailureReason.RESET))
    assert world.picking[3].excluded == {("a", "1"), ("b", "1")}


def test_a_hedge_is_not_made_without_allowance_after_the_first_token_or_for_an_attempt_that_has_ended() -> None:
    world = script(hedges=True)
    world.begin(A, num_tokens=1)
    assert (TimerKind.HEDGE, 1) not in world.timers, "cleared by the token"
    assert world.step(ev.TimerFired(TimerKind.HEDGE, 1)) == []
    world = script(hedges=True)
    hedging = world.machine._hedging
    assert hedging is not None and hedging.acquire_hedge()
    world.begin(A)
    assert world.fire(TimerKind.HEDGE, 1) == []
    world = script(hedges=True)
    world.begin(A)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    assert (TimerKind.HEDGE, 1) not in world.timers
    world.begin(B, 2)
    assert (TimerKind.HEDGE, 2) not in world.timers, "a retry is not hedged"


def test_a_hedge_without_a_replica_returns_its_allowance() -> None:
    world = script(hedges=True)
    world.begin(A)
    world.fire(TimerKind.HEDGE, 1)
    del world.picking[2]
    assert world.step(ev.NoReplica(2)) == []
    hedging = world.machine._hedging
    assert hedging is not None and hedging.num_hedges == 0 and hedging.acquire_hedge()


def test_the_time_to_first_token_counts_from_the_first_attempt() -> None:
    world = script(hedges=True)
    hedging = world.machine._hedging
    assert hedging is not None
    world.now = 1.0
    world.begin(A)
    world.now = 3.0
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    world.begin(B, 2)
    world.now = 4.5
    world.apply(("next", 2))
    world.apply(("next", 2))
    assert hedging._sorted == [0.1, 3.5]


@pytest.mark.parametrize("num_tokens", [0, 1, 2])
def test_a_drain_hands_the_stream_over_and_counts_as_no_failure(num_tokens: int) -> None:
    world = script()
    world.begin(A, num_tokens=num_tokens)
    (pick,) = world.step(ev.ReplicaDraining(1))
    assert pick == act.PickReplica(2, frozenset({("a", "1")}), "w1" if num_tokens else "")
    world.begin(B, 2)
    sent = world.sent
    world.apply(("next", 1))
    world.apply(("next", 1))
    assert world.sent == sent, "what the old replica sends now waits for the new one's first token"
    world.receive_all(2)
    assert world.outcomes == {1: NEUTRAL, 2: SUCCESS}
    assert world.sent == b"".join(world.expected_stream())
    assert world.machine.history.num_failed == 0


@for_each("event", [
    ev.ConnectFailed(2), ev.AttemptBroken(2, FailureReason.RESET), ev.ResponseReceived(2, 429, 1.0),
    ev.ResponseReceived(2, 503, 1.0), ev.ResponseReceived(2, 400), ev.ResponseReceived(2, 500), ev.ReplicaDraining(2),
])  # fmt: skip
@for_each("num_tokens", [0, 1])
def test_when_the_new_replica_fails_the_draining_one_goes_on_with_what_it_has_sent_since(
    event: ev.Event, num_tokens: int
) -> None:
    world = script()
    world.begin(A, num_tokens=num_tokens)
    world.step(ev.ReplicaDraining(1))
    world.pick(2, B)
    if not isinstance(event, ev.ConnectFailed):
        world.step(ev.RequestSent(2))
    world.apply(("next", 1))
    world.apply(("next", 1))
    world.step(event)
    assert 2 in world.released and 1 not in world.released
    world.receive_all(1)
    assert world.final == act.CompleteResponse(1)
    assert world.sent == b"".join(world.expected_stream())
    assert world.machine.history.num_failed == 0


def test_a_draining_replica_that_dies_while_it_is_frozen_is_replaced_when_the_new_one_fails() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.ReplicaDraining(1))
    world.begin(B, 2)
    world.apply(("next", 1))
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    assert world.step(ev.ReplicaDraining(1)) == [], "given away already"
    world.step(ev.AttemptBroken(2, FailureReason.RESET))
    assert world.picking[3].excluded == {("a", "1"), ("b", "1")}
    sends = of_type(world.pick(3, C), act.SendAttempt)
    assert sends[0].members["resume"] == [[10, 11]]


def test_without_another_replica_a_draining_one_keeps_the_stream() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.ReplicaDraining(1))
    del world.picking[2]
    assert world.step(ev.NoReplica(2)) == []
    assert world.step(ev.ReplicaDraining(1)) == [act.PickReplica(3, frozenset({("a", "1")}), "w1")]
    assert world.step(ev.ReplicaDraining(1)) == [], "one pick at a time"
    world.receive_all(1)
    assert world.final == act.CompleteResponse(1)
    assert of_type(world.pick_late(3, B), act.ReleaseReplica) == [act.ReleaseReplica(3, "b")]


def test_a_first_token_during_the_pick_for_a_drain_makes_it_ask_for_the_fingerprint() -> None:
    world = script()
    world.begin(A)
    world.step(ev.ReplicaDraining(1))
    world.apply(("next", 1))
    world.apply(("next", 1))
    assert list(world.picking.values()) == [act.PickReplica(3, frozenset({("a", "1")}), "w1")]


def test_two_drains_in_a_row_leave_one_attempt_open() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.ReplicaDraining(1))
    world.begin(B, 2)
    world.apply(("next", 2))
    world.step(ev.ReplicaDraining(2))
    world.begin(C, 3)
    world.apply(("next", 3))
    assert list(world.connections) == [3]
    assert world.outcomes == {1: NEUTRAL, 2: NEUTRAL}
    world.receive_all(3)
    assert world.sent == b"".join(world.expected_stream())


def test_later_tokens_do_not_restart_the_pick_for_a_drain() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.ReplicaDraining(1))
    world.apply(("next", 1))
    assert list(world.picking) == [2]
    sends = of_type(world.pick(2, B), act.SendAttempt)
    assert sends[0].members["resume"] == [[10, 11]]


def test_what_cannot_be_resumed_or_is_not_sent_yet_is_not_handed_over() -> None:
    world = script()
    world.begin(FOREIGN)
    assert world.step(ev.ReplicaDraining(1)) == []
    world = script()
    assert world.step(ev.ReplicaDraining(1)) == []
    world.pick(1, A)
    assert world.step(ev.ReplicaDraining(1)) == []


def test_one_of_two_attempts_at_a_draining_replica_ends() -> None:
    world = hedged()
    world.step(ev.ReplicaDraining(1))
    assert world.outcomes == {1: NEUTRAL}
    assert not world.picking and list(world.connections) == [2]


def test_a_request_that_is_handed_over_is_not_hedged() -> None:
    world = script(hedges=True)
    world.begin(A)
    world.step(ev.ReplicaDraining(1))
    assert world.fire(TimerKind.HEDGE, 1) == []
    assert list(world.picking) == [2]


def test_a_hedge_that_is_being_picked_takes_the_stream_of_a_draining_replica() -> None:
    world = script(hedges=True)
    world.begin(A)
    world.fire(TimerKind.HEDGE, 1)
    assert world.step(ev.ReplicaDraining(1)) == []
    world.begin(B, 2, num_tokens=1)
    assert world.outcomes == {1: NEUTRAL}


def test_the_deadline_ends_the_request_with_504_or_with_an_error_event() -> None:
    world = script(deadline=30.0)
    assert (TimerKind.DEADLINE, 0) in world.timers
    world.now = 10.0
    assert of_type(world.pick(1, A), act.SendAttempt)[0].timeout_seconds == 20.0
    world.step(ev.RequestSent(1))
    world.fire(TimerKind.DEADLINE, 0)
    assert world.outcomes == {1: NEUTRAL}
    assert isinstance(world.final, act.RespondError)
    assert (world.final.status, world.final.code) == (504, "replica_timeout")
    world = script(deadline=30.0)
    world.begin(A, num_tokens=1)
    world.fire(TimerKind.DEADLINE, 0)
    assert isinstance(world.final, act.EndWithError)
    assert world.final.code == "timeout"


def test_late_first_and_later_tokens_are_answered_with_504() -> None:
    for fields in (STREAM, WHOLE):
        world = script(fields)
        for number, replica in enumerate((A, B, C), start=1):
            world.begin(replica, number)
            world.fire(TimerKind.FIRST_TOKEN, number)
        assert isinstance(world.final, act.RespondError)
        assert (world.final.status, world.final.code) == (504, "replica_timeout")


def test_a_response_without_progress_is_late_only_where_its_replica_fails_its_health_checks() -> None:
    world = script(WHOLE)
    world.begin(FOREIGN)
    for _ in range(3):
        world.fire(TimerKind.FIRST_TOKEN, 1)
        assert world.final is None and world.timers == {(TimerKind.FIRST_TOKEN, 1)} and not world.picking
    world.timers.clear()
    world.step(ev.TimerFired(TimerKind.FIRST_TOKEN, 1, is_replica_unhealthy=True))
    assert world.outcome() is FAULT and list(world.picking) == [2]


def test_the_inter_token_timer_counts_from_the_last_token() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.now = 3.0
    world.apply(("next", 1))
    world.timers.remove((TimerKind.INTER_TOKEN, 1))
    world.now = 5.0
    assert world.step(ev.TimerFired(TimerKind.INTER_TOKEN, 1)) == [act.SetTimer(TimerKind.INTER_TOKEN, 1, 3.0)]
    world.now = 8.0
    actions = world.step(ev.TimerFired(TimerKind.INTER_TOKEN, 1))
    assert act.AbortAttempt(1) in actions
    assert world.outcome() is FAULT


@for_each(("replica", "kind", "num_tokens", "limit"), [
    (A, TimerKind.FIRST_TOKEN, 0, 20.0), (A, TimerKind.INTER_TOKEN, 1, 5.0),
    (FOREIGN, TimerKind.FIRST_TOKEN, 0, None), (FOREIGN, TimerKind.INTER_TOKEN, 1, None),
])  # fmt: skip
def test_comments_of_a_chairlift_server_alone_extend_the_limits_of_tokens(
    replica: ev.ReplicaPicked, kind: TimerKind, num_tokens: int, limit: float | None
) -> None:
    world = script()
    world.begin(replica, num_tokens=num_tokens)
    world.now = 100.0
    assert not world.step(ev.CommentReceived(1)) and world.timers == {(kind, 1)}
    world.now = 101.0
    world.timers.clear()
    actions = world.step(ev.TimerFired(kind, 1))
    if limit is None:
        assert world.outcome() is FAULT
        return
    assert actions == [act.SetTimer(kind, 1, limit - 1.0)]
    world.now = 100.0 + limit
    world.timers.clear()
    world.step(ev.TimerFired(kind, 1))
    assert world.outcome() is FAULT


def test_comments_do_not_keep_a_request_at_a_replica_that_fails_its_health_checks() -> None:
    world = script()
    world.begin(A)
    world.step(ev.CommentReceived(1))
    world.timers.clear()
    world.step(ev.TimerFired(TimerKind.FIRST_TOKEN, 1, is_replica_unhealthy=True))
    assert world.outcome() is FAULT and list(world.picking) == [2]
    world = script()
    world.begin(A, num_tokens=1)
    world.now += 10.0
    world.step(ev.CommentReceived(1))
    world.timers.clear()
    world.step(ev.TimerFired(TimerKind.INTER_TOKEN, 1, is_replica_unhealthy=True))
    assert world.outcome() is FAULT and list(world.picking) == [2]


def test_a_client_that_is_gone_aborts_every_attempt_and_gets_no_answer() -> None:
    world = hedged()
    actions = world.step(ev.ClientDisconnected())
    assert of_type(actions, act.AbortAttempt) == [act.AbortAttempt(1), act.AbortAttempt(2)]
    assert world.outcomes == {1: NEUTRAL, 2: NEUTRAL}
    assert world.released == {1, 2}
    assert world.final == act.CancelRequest()
    assert not world.timers and not world.budget.active_requests
    world = script()
    assert world.step(ev.ClientDisconnected()) == [act.AbortAttempt(1), act.CancelRequest()]
    assert world.pick_late(1, A) == [act.ReleaseReplica(1, "a")]


def test_the_outcome_has_the_times_of_first_and_later_tokens() -> None:
    world = script()
    world.now = 1.0
    world.begin(A)
    world.now = 1.5
    world.step(ev.ChunksReceived(1, [chunk(0, {"content": "x"}, ids=(10,))]))
    world.now = 2.5
    world.step(ev.ChunksReceived(1, [chunk(0, {"content": "y"}, ids=(11, 12), position=1)]))
    actions = world.step(ev.ResponseEnded(1))
    assert of_type(actions, act.RecordOutcome) == [act.RecordOutcome(1, "a", "1", SUCCESS, 0.5, 0.5)]
