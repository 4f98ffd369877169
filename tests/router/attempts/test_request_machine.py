"""Table tests of RequestMachine: each row of failover, and what ends a request."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.actions import Action, ResponseMode
from chairlift.router.attempts.events import FailureReason, TimerKind
from chairlift.router.attempts.retry_budget import RetryBudgetConfig
from chairlift.router.health.breaker import HealthOutcome
from support_attempts import DONE, STREAM, WHOLE, chunk, chunk_event
from support_attempts_script import FOREIGN, OTHER, A, B, C, Script, of_type, script
from support_shares import for_each

NO_BUDGET = RetryBudgetConfig(share=0, min_concurrent=0, min_per_second=0)
FAULT, NEUTRAL, SUCCESS = HealthOutcome.FAULT, HealthOutcome.NEUTRAL, HealthOutcome.SUCCESS


Failure = Callable[[Script], list[Action]]
NOT_SENT: dict[str, Failure] = {
    "refused": lambda world: world.step(ev.ConnectFailed(1)),
    "refused when it is sent again": lambda world: world.step(ev.RequestSent(1)) and world.step(ev.ConnectFailed(1)),
    "connect timeout": lambda world: world.fire(TimerKind.CONNECT, 1),
}
FAULTS: dict[str, Failure] = {
    "reset": lambda world: world.step(ev.AttemptBroken(1, FailureReason.RESET)),
    "eof": lambda world: world.step(ev.AttemptBroken(1, FailureReason.EOF)),
    "first token timeout": lambda world: world.fire(TimerKind.FIRST_TOKEN, 1),
    "bad stream": lambda world: world.step(ev.AttemptBroken(1, FailureReason.BAD_STREAM)),
    "error event": lambda world: world.step(ev.AttemptBroken(1, FailureReason.ERROR_EVENT)),
    **{str(code): lambda world, code=code: world.step(ev.ResponseReceived(1, code)) for code in (500, 502, 504, 501)},
}  # fmt: skip
REJECTIONS: dict[str, Failure] = {
    "429": lambda world: world.step(ev.ResponseReceived(1, 429, 5.0)),
    "503": lambda world: world.step(ev.ResponseReceived(1, 503, 5.0)),
    "503 without Retry-After": lambda world: world.step(ev.ResponseReceived(1, 503)),
}


@pytest.mark.parametrize("failure", NOT_SENT.values(), ids=NOT_SENT)
def test_a_connection_that_fails_is_always_retried_on_replicas_not_tried(failure: Failure) -> None:
    world = script(budget=NO_BUDGET)
    world.pick(1, A)
    actions = failure(world)
    assert world.outcome() is FAULT
    assert of_type(actions, act.PickReplica) == [act.PickReplica(2, frozenset({("a", "1")}))]
    assert [each.failure for each in of_type(actions, act.RecordOutcome)] == [FailureReason.CONNECT]
    assert world.picking[2].purpose == "retry"
    for number, replica in enumerate((B, C, OTHER, FOREIGN), start=2):  # more than max_attempts
        world.pick(number, replica)
        world.step(ev.ConnectFailed(number))
    assert world.picking[6].excluded == {("a", "1"), ("b", "1"), ("c", "1"), ("o", "1"), ("f", "1")}
    assert world.step(ev.NoReplica(6))[-1] == world.final
    assert isinstance(world.final, act.RespondError)
    assert (world.final.status, world.final.code) == (502, "replica_failed")
    assert "5 attempts failed and no other replica can take the request" in world.final.message
    assert "no connection to the replica" in world.final.message


@pytest.mark.parametrize("failure", FAULTS.values(), ids=FAULTS)
def test_a_failure_before_the_first_token_is_replayed_elsewhere_until_the_attempts_are_spent(failure: Failure) -> None:
    world = script()
    world.begin(A)
    actions = failure(world)
    assert world.outcome() is FAULT
    assert of_type(actions, act.PickReplica) == [act.PickReplica(2, frozenset({("a", "1")}))]
    assert of_type(actions, act.ReleaseReplica) == [act.ReleaseReplica(1, "a")]
    world.begin(B, 2)
    world.step(ev.AttemptBroken(2, FailureReason.RESET))
    world.begin(C, 3)
    world.step(ev.AttemptBroken(3, FailureReason.EOF))
    assert isinstance(world.final, act.RespondError)
    assert world.final.status == 502
    assert "3 attempts failed, which is the limit" in world.final.message


@for_each("name", {**FAULTS, **REJECTIONS})
def test_only_a_lost_replica_is_replaced_when_the_retry_budget_is_used_up(name: str) -> None:
    world = script(budget=NO_BUDGET)
    world.begin(A)
    {**FAULTS, **REJECTIONS}[name](world)
    assert bool(world.picking) == (name in ("reset", "eof"))
    if not world.picking:
        assert isinstance(world.final, act.RespondError)
        assert "the retry budget is used up" in world.final.message


def test_a_late_first_token_of_a_replica_that_fails_its_health_checks_asks_no_budget() -> None:
    world = script(budget=NO_BUDGET)
    world.begin(A)
    world.timers.remove((TimerKind.FIRST_TOKEN, 1))
    actions = world.step(ev.TimerFired(TimerKind.FIRST_TOKEN, 1, is_replica_unhealthy=True))
    assert world.outcome() is FAULT and act.AbortAttempt(1) in actions
    assert of_type(actions, act.PickReplica) == [act.PickReplica(2, frozenset({("a", "1")}))]
    world.step(ev.NoReplica(2))
    assert isinstance(world.final, act.RespondError)
    assert (world.final.status, world.final.code) == (504, "replica_timeout")
    assert "health checks of the replica fail" in world.final.message


@pytest.mark.parametrize("failure", REJECTIONS.values(), ids=REJECTIONS)
def test_a_full_replica_is_left_alone_and_others_are_tried(failure: Failure) -> None:
    world = script()
    world.begin(A)
    actions = failure(world)
    assert world.outcome() is NEUTRAL
    assert of_type(actions, act.PickReplica) == [act.PickReplica(2, frozenset({("a", "1")}))]


def test_when_all_are_full_the_client_gets_429_with_the_smallest_retry_after() -> None:
    world = script()
    for number, (replica, seconds) in enumerate(((A, 9.0), (B, 2.5), (C, 7.0)), start=1):
        world.begin(replica, number)
        world.step(ev.ResponseReceived(number, 429 if number < 3 else 503, seconds))
    assert isinstance(world.final, act.RespondError)
    assert (world.final.status, world.final.code, world.final.retry_after) == (429, "overloaded", 2.5)


def test_without_any_replica_the_client_gets_503_with_the_time_of_the_pick() -> None:
    for given, seconds in ((4.0, 4.0), (None, 1.0)):
        world = script()
        world.step(ev.NoReplica(1, given))
        assert isinstance(world.final, act.RespondError)
        assert (world.final.status, world.final.code, world.final.retry_after) == (503, "unavailable", seconds)
        assert world.final.message == "no replica can take the request now; retry later"


@for_each("status", [400, 401, 404, 408, 413, 422, 499, 302])
def test_a_4xx_passes_through_without_a_retry_and_says_nothing_about_health(status: int) -> None:
    world = script()
    world.begin(A)
    world.step(ev.ResponseReceived(1, status, None, b'{"error":{}}'))
    assert world.outcome() is NEUTRAL
    assert world.final == act.PassResponse(1, status, b'{"error":{}}')
    assert not world.picking


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (lambda world: world.step(ev.AttemptBroken(1, FailureReason.RESET)), FAULT),
        (lambda world: world.step(ev.AttemptBroken(1, FailureReason.EOF)), FAULT),
        (lambda world: world.fire(TimerKind.INTER_TOKEN, 1), FAULT),
        (lambda world: world.step(ev.AttemptBroken(1, FailureReason.UNAVAILABLE)), NEUTRAL),
        (lambda world: world.step(ev.ChunksReceived(1, [chunk(0, {"content": "?"}, ids=(9,), position=7)])), FAULT),
    ],
    ids=["reset", "eof", "inter-token timeout", "drained", "gap"],
)
def test_a_stream_with_tokens_is_resumed_on_the_same_weights_without_asking_the_budget(
    failure: Failure, outcome: HealthOutcome
) -> None:
    world = script(budget=NO_BUDGET)
    world.begin(A, num_tokens=2)
    actions = failure(world)
    assert world.outcome() is outcome
    assert of_type(actions, act.PickReplica) == [act.PickReplica(2, frozenset({("a", "1")}), "w1")]
    assert [each.purpose for each in of_type(actions, act.PickReplica)] == ["resume"]
    assert world.budget.active_retries == 1
    sends = of_type(world.pick(2, B), act.SendAttempt)
    members = {"seed": 7, "return_token_ids": True, "resume": [[10, 11]], "resume_fingerprint": "w1"}
    assert sends == [act.SendAttempt(2, "b", ResponseMode.TOKENS, members, None)]
    world.apply(("next", 2))
    assert world.budget.active_retries == 0, "a retry is over with its first token"
    world.apply(("next", 2))
    assert world.final == act.CompleteResponse(2)
    assert world.sent == b"".join(world.expected_stream())
    assert world.outcome(2) is SUCCESS


def test_a_replica_with_other_weights_is_given_back_and_the_stream_ends_with_an_error() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    actions = world.pick(2, OTHER)
    assert actions[0] == act.ReleaseReplica(2, "o")
    assert isinstance(world.final, act.EndWithError)
    assert world.final.code == "resume_failed"
    assert world.final.payload.startswith(b'event: error\ndata: {"error":{"message":"1 attempt failed and no other')
    assert b"(request r1)" in world.final.payload
    assert DONE not in world.sent


@pytest.mark.parametrize("name", ["reset", "eof"])
def test_a_foreign_stream_fails_over_before_its_first_bytes_and_never_after(name: str) -> None:
    world = script()
    world.begin(FOREIGN)
    FAULTS[name](world)
    assert world.picking
    sends = of_type(world.pick(2, replace(FOREIGN, replica_id="g")), act.SendAttempt)
    assert sends == [act.SendAttempt(2, "g", ResponseMode.OPAQUE, {}, None)]
    world.apply(("next", 2))
    world.step(ev.AttemptBroken(2, FailureReason.EOF))
    assert isinstance(world.final, act.EndWithError)
    assert b"cannot be resumed on another replica" in world.final.payload


def test_a_stream_whose_choices_have_all_finished_is_completed_without_another_replica() -> None:
    world = script()
    world.begin(A, num_tokens=3)
    actions = world.step(ev.AttemptBroken(1, FailureReason.EOF))
    assert world.outcome() is FAULT
    assert actions[-2:] == [act.DeliverBytes(1, DONE), act.CompleteResponse(1)]
    usage = script(replace(STREAM, includes_usage=True))
    usage.begin(A, num_tokens=3)
    usage.step(ev.AttemptBroken(1, FailureReason.EOF))
    assert usage.picking[2].fingerprint == "w1", "the token counts are missing"


def test_a_resume_waits_while_all_replicas_are_full_and_tries_them_again() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    world.begin(B, 2)
    world.step(ev.ResponseReceived(2, 429, 2.0))
    assert world.picking.pop(3).excluded == {("a", "1"), ("b", "1")}
    assert world.step(ev.NoReplica(3)) == [act.SetTimer(TimerKind.RETRY, 0, 2.0)]
    assert world.fire(TimerKind.RETRY, 0) == [act.PickReplica(4, frozenset({("a", "1")}), "w1")]
    world.begin(B, 4, num_tokens=2)
    assert world.final == act.CompleteResponse(4)


@pytest.mark.parametrize("status", [400, 409, 413])
def test_a_resume_that_a_replica_rejects_goes_to_another_one(status: int) -> None:
    """Replicas of a pool may have other limits; the request itself was accepted before."""
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    world.begin(B, 2)
    actions = world.step(ev.ResponseReceived(2, status, body=b"{}"))
    assert world.outcome(2) is NEUTRAL
    assert of_type(actions, act.PickReplica) == [act.PickReplica(3, frozenset({("a", "1"), ("b", "1")}), "w1")]
    world.begin(C, 3, num_tokens=2)
    assert isinstance(world.final, act.CompleteResponse)


def test_a_resume_waits_no_longer_than_it_may() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    for number in (2, 3, 4):
        del world.picking[number]
        world.step(ev.NoReplica(number, 4.0))
        world.now += 4.0
        if number < 4:
            world.fire(TimerKind.RETRY, 0)
    assert isinstance(world.final, act.EndWithError), "two waits of 4 s fit into 10 s"


def test_a_token_renews_the_time_that_a_resume_may_wait() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    for number in (1, 3):
        world.step(ev.AttemptBroken(number, FailureReason.RESET))
        del world.picking[number + 1]
        assert world.step(ev.NoReplica(number + 1, 6.0)) == [act.SetTimer(TimerKind.RETRY, 0, 6.0)]
        world.now += 6.0
        world.fire(TimerKind.RETRY, 0)
        world.begin(replace(B, incarnation=str(number)), number + 2)
        world.receive(number + 2, 1)
    assert world.final is None


def test_resumed_tokens_that_no_replica_takes_end_a_stream_and_restart_another_response() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    world.begin(B, 2)
    world.step(ev.ResponseReceived(2, 400, None, b"resume: token 5 is not allowed"))
    world.step(ev.NoReplica(3))
    assert isinstance(world.final, act.EndWithError)
    assert b"rejected the tokens to resume from" in world.final.payload
    whole = script(WHOLE)
    whole.begin(A, num_tokens=1)
    whole.step(ev.AttemptBroken(1, FailureReason.RESET))
    whole.begin(B, 2)
    actions = whole.step(ev.ResponseReceived(2, 400))
    assert of_type(actions, act.PickReplica)[0].fingerprint == "", "nothing was sent, so any replica may start"


def test_a_replica_whose_weights_have_changed_is_replaced() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    world.begin(B, 2)
    actions = world.step(ev.ResponseReceived(2, 409))
    assert world.outcome(2) is NEUTRAL
    assert of_type(actions, act.PickReplica) == [act.PickReplica(3, frozenset({("a", "1"), ("b", "1")}), "w1")]


def test_a_rolling_restart_hands_a_stream_over_more_often_than_attempts_may_fail() -> None:
    world = script()
    world.begin(A, num_tokens=1)
    for number in range(2, 7):
        world.step(ev.AttemptBroken(number - 1, FailureReason.UNAVAILABLE))
        world.begin(replace(B, replica_id=f"b{number}"), number)
    world.receive(6, 3)
    assert world.final == act.CompleteResponse(6)


def test_a_response_that_is_not_streamed_resumes_and_starts_again_where_it_cannot() -> None:
    world = script(WHOLE)
    assert of_type(world.pick(1, A), act.SendAttempt) == [
        act.SendAttempt(1, "a", ResponseMode.PROGRESS, {"seed": 7}, None)
    ]
    world.apply(("next", 1))
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    assert world.picking[2].fingerprint == "w1"
    restarted = world.copy()
    sends = of_type(world.pick(2, B), act.SendAttempt)
    assert sends[0].members == {"seed": 7, "resume": [[10]], "resume_fingerprint": "w1"}
    world.step(ev.ResponseEnded(2, b'{"choices":[]}'))
    assert world.sent == b'{"choices":[]}'
    assert world.final == act.CompleteResponse(2)
    del restarted.picking[2]
    assert of_type(restarted.step(ev.NoReplica(2)), act.PickReplica) == [act.PickReplica(3, frozenset({("a", "1")}))]
    sends = of_type(restarted.pick(3, FOREIGN), act.SendAttempt)
    assert sends == [act.SendAttempt(3, "f", ResponseMode.WHOLE, {}, None)]


def test_late_bytes_of_an_older_attempt_are_dropped() -> None:
    world = script()
    world.begin(A)
    world.step(ev.AttemptBroken(1, FailureReason.RESET))
    late = ev.ChunksReceived(1, [chunk(0, {"content": "late"}, ids=(9,))])
    assert world.step(late) == []
    world.begin(B, 2, num_tokens=1)
    for event in (late, ev.ResponseEnded(1, DONE), ev.AttemptBroken(1, FailureReason.EOF), ev.ReplicaDraining(1)):
        assert world.step(event) == []
    assert b"late" not in world.sent


def test_tokens_that_were_delivered_before_are_dropped_and_held_parts_come_once() -> None:
    world = script()
    world.begin(A)
    role = chunk(0, {"role": "assistant", "content": ""})
    text = chunk(0, {"content": "x"}, ids=(10,))
    assert of_type(world.step(ev.ChunksReceived(1, [role])), act.DeliverBytes) == []
    actions = world.step(ev.ChunksReceived(1, [text, text]))
    assert of_type(actions, act.DeliverBytes) == [act.DeliverBytes(1, role.payload + chunk_event(0, {"content": "x"}))]


def test_an_error_of_the_request_itself_passes_to_the_client_without_a_retry() -> None:
    payload = b'{"error":{"message":"too complex","code":"structured_output_too_complex"}}'
    world = script()
    world.begin(A)
    world.step(ev.RequestErrorReported(1, payload))
    assert world.final == act.RespondError(400, "structured_output_too_complex", "too complex")
    world = script()
    world.begin(A)
    world.receive(1, 1)
    world.step(ev.RequestErrorReported(1, payload))
    assert isinstance(world.final, act.RespondError), "a role that was held is nothing that was sent"
    world = script()
    world.begin(A, num_tokens=1)
    world.step(ev.RequestErrorReported(1, payload))
    assert world.final == act.EndWithError("structured_output_too_complex", b"event: error\ndata: " + payload + b"\n\n")
    assert world.outcome() is NEUTRAL
