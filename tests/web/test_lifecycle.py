"""Lifecycle: the state of the server, and the three health routes in each state."""

import asyncio
from typing import Any

import orjson
import pytest

from chairlift.core.errors import Unavailable
from chairlift.core.load_report import ReplicaState
from chairlift.web.error_responses import error_headers, error_response_of
from chairlift.web.lifecycle import RETRY_SECONDS, STATE_MESSAGES, Lifecycle

STARTING, READY, DRAINING, DEAD, STOPPED = (
    ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.DEAD, ReplicaState.STOPPED,
)  # fmt: skip


def make_lifecycle(state: ReplicaState) -> Lifecycle:
    lifecycle = Lifecycle()
    if state is DRAINING:
        lifecycle.mark_started(lambda: READY)
        lifecycle.drain()
    elif state is not STARTING:
        lifecycle.mark_started(lambda: state)
    return lifecycle


def get(route: Any) -> tuple[int, Any]:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    asyncio.run(route({}, None, send))
    start, body = messages
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/json" and int(headers[b"content-length"]) == len(body["body"])
    return start["status"], orjson.loads(body["body"])


@pytest.mark.parametrize("state", ReplicaState)
def test_the_three_routes(state: ReplicaState) -> None:
    """/livez is 200 while the server responds, /readyz only while it accepts requests."""
    lifecycle = make_lifecycle(state)
    status = 200 if state is READY else 503
    assert get(lifecycle.livez) == (200, {"alive": True})
    assert get(lifecycle.readyz) == (status, {"state": str(state)})
    health_status, health = get(lifecycle.health)
    assert health_status == status
    assert health["state"] == str(state)
    assert health["reason"] == STATE_MESSAGES.get(state, "") and bool(health["reason"]) == (state is not READY)
    assert health["phase"] == lifecycle.phase
    assert 0 <= health["uptime_seconds"] <= lifecycle.age + 0.001


@pytest.mark.parametrize("state", ReplicaState)
def test_only_who_is_ready_takes_requests(state: ReplicaState) -> None:
    lifecycle = make_lifecycle(state)
    if state is READY:
        lifecycle.check()
        return
    with pytest.raises(Unavailable) as caught:
        lifecycle.check()
    assert error_response_of(caught.value).status == 503
    assert caught.value.details["state"] == str(state)
    assert caught.value.details["retry_after"] == RETRY_SECONDS.get(state, 1.0)
    assert {name for name, _ in error_headers(caught.value)} == {b"retry-after", b"retry-after-ms"}


def test_the_engine_is_asked_every_time() -> None:
    states = [READY, DEAD, READY]
    lifecycle = Lifecycle()
    lifecycle.mark_started(lambda: states.pop(0))
    assert [lifecycle.state for _ in range(3)] == [READY, DEAD, READY]


def test_a_life() -> None:
    engine = READY
    lifecycle = Lifecycle()
    assert (lifecycle.state, lifecycle.phase) == (STARTING, "starting")
    lifecycle.phase = "reading weights"
    assert get(lifecycle.health)[1]["phase"] == "reading weights"
    lifecycle.mark_started(lambda: engine)
    assert (lifecycle.state, lifecycle.phase) == (READY, "serving")
    engine = DEAD
    assert lifecycle.state is DEAD
    engine = READY
    lifecycle.drain()
    assert lifecycle.state is DRAINING


@pytest.mark.parametrize("engine", [None, READY, DEAD, STARTING, STOPPED])
def test_who_leaves_stays_that_way_whatever_its_engine_does(engine: ReplicaState | None) -> None:
    lifecycle = Lifecycle()
    lifecycle.drain()
    if engine is not None:
        lifecycle.mark_started(lambda: engine)
    assert lifecycle.state is DRAINING
    with pytest.raises(Unavailable):
        lifecycle.check()


def test_every_state_but_ready_has_a_sentence_of_its_own() -> None:
    assert STATE_MESSAGES.keys() == set(ReplicaState) - {READY}
    assert len(set(STATE_MESSAGES.values())) == len(STATE_MESSAGES)


def test_an_engine_that_is_started_again_is_no_start_of_the_server() -> None:
    lifecycle = make_lifecycle(READY)
    lifecycle.mark_started(lambda: STARTING)
    assert get(lifecycle.health)[1]["reason"] == "the engine is down; it is started again" != STATE_MESSAGES[STARTING]
    with pytest.raises(Unavailable, match="started again"):
        lifecycle.check()


@pytest.mark.parametrize("engine", [READY, DEAD, STARTING, STOPPED])
def test_something_new_is_stored_until_the_server_leaves(engine: ReplicaState) -> None:
    lifecycle = Lifecycle()
    lifecycle.check_not_leaving()
    lifecycle.mark_started(lambda: engine)
    if engine is STOPPED:
        with pytest.raises(Unavailable):
            lifecycle.check_not_leaving()
    else:
        lifecycle.check_not_leaving()
    lifecycle.drain()
    with pytest.raises(Unavailable, match="takes nothing new"):
        lifecycle.check_not_leaving()
