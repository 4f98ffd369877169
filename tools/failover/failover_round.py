"""run_round: opens streams over a router, loses a replica, and compares each response with that of an uncut run."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp

from failover.fault import Fault, hold, inject, recover, router_of
from failover.fleet import Fleet
from failover.request_kinds import RequestKind
from failover.response_comparison import BadResponse, difference, num_received_tokens, read_response

MAX_PARALLEL_REFERENCES = 16
OK = 200


@dataclass(slots=True)
class ReceivedResponse:
    """What a client has received.

    Attributes:
        replica_id: the replica that the response began on; "" before it began.
        status: its status, 0 before it began.
        body: its bytes.
        num_tokens: tokens so far.
        error: what has ended it too early; "" for nothing.
    """

    replica_id: str = ""
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    num_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One round.

    Attributes:
        model: what the replicas served.
        fault: how the replica was lost.
        num_delivered: tokens that a stream of it had delivered then, at least.
        num_requests: requests by kind.
        num_on_victim: requests that the replica had open then; after the first token those whose response had begun.
        problems: what differed or failed, by request.
        seconds: duration with the replica's return.
    """

    model: str
    fault: str
    num_delivered: int
    num_requests: dict[str, int]
    num_on_victim: int
    problems: list[str]
    seconds: float

    @classmethod
    def of_scenario(cls, model: str, name: str, problems: list[str], num_streams: int) -> Self:
        """Return the result of a scenario that loses no single replica."""
        requests = {name: num_streams}
        return cls(
            model=model,
            fault=name,
            num_delivered=0,
            num_requests=requests,
            num_on_victim=0,
            problems=problems,
            seconds=0,
        )


class References:
    """The responses of uncut runs, by kind and number."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._contents: dict[tuple[str, int], dict[str, Any]] = {}
        self._stops: dict[tuple[str, int], str] = {}

    async def prepare(self, requests: Sequence[tuple[RequestKind, int]]) -> None:
        """Run the requests that have not been run before, directly on a replica."""
        limit = asyncio.Semaphore(MAX_PARALLEL_REFERENCES)
        await asyncio.gather(*(self._prepare(kind, number, limit) for kind, number in requests))

    def body(self, kind: RequestKind, number: int) -> dict[str, Any]:
        """Return the body of a request, with its stop string."""
        stop = self._stops.get((kind.name, number))
        return kind.body(number) | ({} if stop is None else {"stop": [stop]})

    def content(self, kind: RequestKind, number: int) -> dict[str, Any]:
        """Return the content of the uncut response."""
        return self._contents[kind.name, number]

    async def _prepare(self, kind: RequestKind, number: int, limit: asyncio.Semaphore) -> None:
        key = kind.name, number
        if key in self._contents:
            return
        async with limit:
            if kind.stop_at is not None:
                content = await self._run(kind, number)
                text = _text_of(content)
                start, end = (int(share * len(text)) for share in kind.stop_at)
                self._stops[key] = text[start:end]
                assert self._stops[key], f"{kind.name}: the text is too short for a stop string"
            self._contents[key] = await self._run(kind, number)

    async def _run(self, kind: RequestKind, number: int) -> dict[str, Any]:
        response = ReceivedResponse()
        url = self._fleet.replicas[-1].url
        await receive(self._fleet, url, kind, number, self.body(kind, number), response, lambda: None)
        assert response.status == OK, f"{kind.name}: {response.status} {bytes(response.body)!r} {response.error}"
        return read_response(bytes(response.body), is_streamed=kind.is_streamed)


def _text_of(content: dict[str, Any]) -> str:
    choice = content["choices"][0]
    text: str = choice.get("content") or choice.get("message", {}).get("content") or choice.get("text") or ""
    return text


async def receive(
    fleet: Fleet, url: str, kind: RequestKind, number: int, body: dict[str, Any], response: ReceivedResponse,
    on_received: Callable[[], None],
) -> None:  # fmt: skip
    """Send a request and receive its response, also one that breaks; calls `on_received` for each piece."""
    headers = {"x-request-id": f"{kind.name.replace(' ', '-').replace('=', '')}-{number}"}
    try:
        async with fleet.http.post(url + kind.path, json=body, headers=headers) as answer:
            response.status, response.replica_id = answer.status, answer.headers.get("x-chairlift-replica", "")
            async for piece in answer.content.iter_any():
                response.body += piece
                response.num_tokens += num_received_tokens(piece) if kind.is_streamed else 0
                on_received()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        response.error = f"{type(error).__name__}: {error}"
    on_received()


async def run_round(
    fleet: Fleet, references: References, kinds: Sequence[RequestKind], fault: Fault, *, num_streams: int,
    num_delivered: int, victim: int,
) -> RoundResult:  # fmt: skip
    """Lose a replica when one of its streams has delivered so many tokens; all replicas are back at the end.

    For 0 tokens it is the `victim`, otherwise the one that is first to deliver so many.
    """
    started_at = time.monotonic()
    requests = [(kinds[at % len(kinds)], at // len(kinds)) for at in range(num_streams)]
    await references.prepare(requests)
    responses = [ReceivedResponse() for _ in requests]
    router = router_of(fault)
    progress = asyncio.Event()
    before = _num_attempts(await fleet.statuses(router))
    if not num_delivered:
        hold(fleet, victim, fault)
    tasks = [
        asyncio.create_task(receive(
            fleet, fleet.routers[router].url, kind, number, references.body(kind, number), response, progress.set
        ))
        for (kind, number), response in zip(requests, responses, strict=True)
    ]  # fmt: skip
    problems = []
    if num_delivered:
        while not (found := [each.replica_id for each in responses if each.num_tokens >= num_delivered]):
            if all(task.done() for task in tasks):
                problems.append(f"no stream has delivered {num_delivered} tokens")
                break
            progress.clear()
            await progress.wait()
        victim_id = found[0] if found else fleet.replica_ids(router)[victim]
        victim = fleet.replica_ids(router).index(victim_id)
        num_on_victim = sum(
            each.replica_id == victim_id and not task.done() for each, task in zip(responses, tasks, strict=True)
        )
    else:
        statuses = await fleet.statuses(router)
        while _num_attempts(statuses) < before + num_streams:
            await asyncio.sleep(0.01)
            statuses = await fleet.statuses(router)
        num_on_victim = statuses[victim]["open_requests"]
    await inject(fleet, victim, fault, is_held=not num_delivered)
    await asyncio.gather(*tasks)
    if not num_on_victim:
        problems.append("the replica had no request")
    problems += find_problems(references, requests, responses)
    await recover(fleet, victim, fault)
    return RoundResult(
        model=fleet.model.value, fault=fault.value, num_delivered=num_delivered,
        num_requests=dict(Counter(kind.name for kind, _ in requests)), num_on_victim=num_on_victim,
        problems=problems, seconds=round(time.monotonic() - started_at, 2),
    )  # fmt: skip


def _num_attempts(statuses: list[dict[str, Any]]) -> int:
    return sum(each["num_attempts"] for each in statuses)


def find_problems(
    references: References, requests: Sequence[tuple[RequestKind, int]], responses: Sequence[ReceivedResponse]
) -> list[str]:
    """Return what differs from the uncut runs."""
    found = []
    for (kind, number), response in zip(requests, responses, strict=True):
        problem = response.error
        if not problem and response.status != OK:
            problem = f"status {response.status}: {bytes(response.body[:400])!r}"
        if not problem:
            try:
                content = read_response(bytes(response.body), is_streamed=kind.is_streamed)
                problem = difference(references.content(kind, number), content)
            except BadResponse as error:
                problem = str(error)
        if problem:
            found.append(f"{kind.name} {number}: {problem}")
    return found
