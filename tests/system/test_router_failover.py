"""Replicas and routers are lost while they stream, and every response equals that of an uncut run.

A share of `make failover`: three replicas in processes of their own, two routers, and each kind of request at once.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.protocol.sse import EventReader
from failover.failover_round import References, run_round
from failover.fault import Fault
from failover.fleet import NUM_REPLICAS, Fleet
from failover.request_kinds import KINDS, Model
from failover.scenarios import fill_replica, kill_router, kill_two, lose_all
from support_router_process import router_server
from support_server import HELLO, fake_server

TIMEOUT_SECONDS = 200.0
ROUTER_OPTIONS = ("--inter-token-timeout", "2", "--first-token-timeout", "5")
NUM_STREAMS = 24
NUM_MANY_STREAMS = 64
"""So many that a third of them, moved at once, is more than the retry budget allows."""


async def lose_replicas(fleet: Fleet, references: References, rounds: Sequence[tuple[Fault, int, int]]) -> None:
    """Run rounds of (fault, tokens delivered before, streams), each with the next replica as its victim."""
    for at, (fault, num_delivered, num_streams) in enumerate(rounds):
        result = await run_round(
            fleet, references, KINDS[fleet.model], fault, num_streams=num_streams, num_delivered=num_delivered,
            victim=at % NUM_REPLICAS,
        )  # fmt: skip
        assert not result.problems, result
        assert sum(result.num_requests.values()) == num_streams


@pytest.mark.full
def test_no_token_is_lost_however_a_replica_is_lost() -> None:
    async def scenario() -> None:
        async with Fleet(Model.FAKE, router_options=ROUTER_OPTIONS) as fleet:
            references = References(fleet)
            await lose_replicas(fleet, references, [
                (Fault.KILL, 0, NUM_STREAMS), (Fault.KILL, 1, NUM_STREAMS), (Fault.KILL, 100, NUM_STREAMS),
                (Fault.STALL, 100, NUM_STREAMS),
                (Fault.TERM, 1, NUM_STREAMS), (Fault.DRAIN, 100, NUM_STREAMS),
                (Fault.STOP, 0, NUM_MANY_STREAMS),
            ])  # fmt: skip
            assert await kill_router(fleet, references, KINDS[Model.FAKE], NUM_STREAMS) == []
            assert await kill_two(fleet, references, KINDS[Model.FAKE], NUM_STREAMS) == []
            assert await lose_all(fleet, references, KINDS[Model.FAKE], NUM_STREAMS) == []

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_SECONDS))


@pytest.mark.full
def test_tools_reasoning_and_structured_output_go_on_elsewhere() -> None:
    async def scenario() -> None:
        async with Fleet(Model.SCRIPTED, router_options=ROUTER_OPTIONS) as fleet:
            rounds = [(Fault.CUT, 1, NUM_STREAMS), (Fault.DRAIN, 60, NUM_STREAMS), (Fault.KILL, 60, NUM_STREAMS)]
            await lose_replicas(fleet, References(fleet), rounds)

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_SECONDS))


@pytest.mark.full
def test_the_embedded_model_goes_on_elsewhere() -> None:
    async def scenario() -> None:
        async with Fleet(Model.DEMO, router_options=ROUTER_OPTIONS) as fleet:
            await lose_replicas(fleet, References(fleet), [(Fault.RESET, 60, len(KINDS[Model.DEMO]))])

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_SECONDS))


@pytest.mark.full
def test_requests_that_a_full_replica_rejects_are_answered_by_the_others() -> None:
    async def scenario() -> None:
        limits = {"admission": {"max_waiting_requests": 1}}
        async with Fleet(Model.FAKE, first_replica=limits) as fleet:
            assert await fill_replica(fleet, References(fleet), KINDS[Model.FAKE], NUM_STREAMS) == []

    asyncio.run(asyncio.wait_for(scenario(), TIMEOUT_SECONDS))


def test_a_message_of_anthropics_api_goes_on_elsewhere_to_its_stop_sequence() -> None:
    engine = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.02)
    body: dict[str, Any] = {"model": "fake", "max_tokens": 150, "seed": 7, "messages": HELLO["messages"]}
    with fake_server(engine) as first, fake_server(engine) as second, router_server(first, second) as router:
        url = f"{router.url}/v1/messages"
        text = httpx.post(url, json=body, timeout=60).json()["content"][0]["text"]
        stop = next(text[at : at + 4] for at in range(60, len(text)) if text.find(text[at : at + 4]) == at)
        body["stop_sequences"] = [stop]
        whole = httpx.post(url, json=body, timeout=60).json()
        assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", stop)
        busy, events = [first, second], EventReader()
        sent: list[dict[str, Any]] = []
        with httpx.stream("POST", url, json=body | {"stream": True}, timeout=60) as stream:
            for piece in stream.iter_bytes():
                sent += [json.loads(event.data) for event in events.push(piece)]
                if len(sent) > 10 and busy:
                    serving = next(server for server in busy if server.metric("sequences_running") > 0)
                    serving.process.kill()
                    busy = []
        assert not busy and [event["type"] for event in sent].count("message_start") == 1
        assert (
            "".join(event["delta"].get("text", "") for event in sent if "delta" in event)
            == (whole["content"][0]["text"])
        )
        assert sent[-1] == {"type": "message_stop"} and sent[-2]["delta"]["stop_sequence"] == stop
        assert sent[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
