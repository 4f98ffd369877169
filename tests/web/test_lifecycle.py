"""Lifecycle: which state wins, what the three health routes say in each, and who is served."""

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


def life(state: ReplicaState) -> Lifecycle:
    result = Lifecycle()
    if state is DRAINING:
        result.mark_started(lambda: READY)
        result.drain()
    elif state is not STARTING:
        result.mark_started(lambda: state)
    return result


def asked(route: Any) -> tuple[int, Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(route({}, None, send))
    start, body = sent
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/json" and int(headers[b"content-length"]) == len(body["body"])
    return start["status"], orjson.loads(body["body"])


@pytest.mark.parametrize("state", ReplicaState)
def test_the_three_routes(state: ReplicaState) -> None:
    """Alive is who answers; ready is who would serve."""
    result = life(state)
    status = 200 if state is READY else 503
    assert asked(result.livez) == (200, {"alive": True})
    assert asked(result.readyz) == (status, {"state": str(state)})
    said_status, said = asked(result.health)
    assert said_status == status
    assert said["state"] == str(state)
    assert said["reason"] == STATE_MESSAGES.get(state, "") and bool(said["reason"]) == (state is not READY)
    assert said["phase"] == result.phase
    assert 0 <= said["uptime_seconds"] <= result.age + 0.001


@pytest.mark.parametrize("state", ReplicaState)
def test_only_who_is_ready_takes_requests(state: ReplicaState) -> None:
    result = life(state)
    if state is READY:
        result.check()
        return
    with pytest.raises(Unavailable) as caught:
        result.check()
    assert error_response_of(caught.value).status == 503
    assert caught.value.details["state"] == str(state)
    assert caught.value.details["retry_after"] == RETRY_SECONDS.get(state, 1.0)
    assert {name for name, _ in error_headers(caught.value)} == {b"retry-after", b"retry-after-ms"}


def test_the_engine_is_asked_every_time() -> None:
    states = [READY, DEAD, READY]
    result = Lifecycle()
    result.mark_started(lambda: states.pop(0))
    assert [result.state for _ in range(3)] == [READY, DEAD, READY]


def test_a_life() -> None:
    engine = READY
    result = Lifecycle()
    assert (result.state, result.phase) == (STARTING, "starting")
    result.phase = "reading weights"
    assert asked(result.health)[1]["phase"] == "reading weights"
    result.mark_started(lambda: engine)
    assert (result.state, result.phase) == (READY, "serving")
    engine = DEAD
    assert result.state is DEAD
    engine = READY
    result.drain()
    assert result.state is DRAINING


@pytest.mark.parametrize("engine", [None, READY, DEAD, STARTING, STOPPED])
def test_who_leaves_stays_that_way_whatever_its_engine_does(engine: ReplicaState | None) -> None:
    result = Lifecycle()
    result.drain()
    if engine is not None:
        result.mark_started(lambda: engine)
    assert result.state is DRAINING
    with pytest.raises(Unavailable):
        result.check()


def test_every_state_but_ready_has_a_sentence_of_its_own() -> None:
    assert STATE_MESSAGES.keys() == set(ReplicaState) - {READY}
    assert len(set(STATE_MESSAGES.values())) == len(STATE_MESSAGES)


def test_an_engine_that_is_started_again_is_no_start_of_the_server() -> None:
    result = life(READY)
    result.mark_started(lambda: STARTING)
    assert asked(result.health)[1]["reason"] == "the engine is down; it is started again" != STATE_MESSAGES[STARTING]
    with pytest.raises(Unavailable, match="started again"):
        result.check()
