"""Scenarios: a router is killed, all replicas are killed and come back, and one replica has no room."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

from failover.failover_round import ReceivedResponse, References, find_problems, receive
from failover.fleet import NUM_REPLICAS, Fleet
from failover.request_kinds import RequestKind

NUM_DELIVERED = 20
MAX_ERROR_SECONDS = 10.0
"""Time within which a router without replicas must answer with an error."""

Requests = Sequence[tuple[RequestKind, int]]
Scenario = Callable[[Fleet, References, Sequence[RequestKind], int], Awaitable[list[str]]]


def requests_of(kinds: Sequence[RequestKind], num_streams: int) -> Requests:
    """Return the streamed requests of a scenario, of all kinds in turn."""
    streamed = [kind for kind in kinds if kind.is_streamed]
    return [(streamed[at % len(streamed)], at // len(streamed)) for at in range(num_streams)]


async def kill_router(
    fleet: Fleet, references: References, kinds: Sequence[RequestKind], num_streams: int
) -> list[str]:  # fmt: skip
    """Kill the first of two routers: its connections end, those of the other go on, and no replica keeps a request."""
    requests = requests_of(kinds, num_streams)
    half = len(requests) // 2
    urls = [fleet.routers[int(at >= half)].url for at in range(len(requests))]
    responses, tasks = await _start(fleet, references, requests, urls)
    await _wait_for_tokens(responses[:half], tasks[:half])
    await _wait_for_tokens(responses[half:], tasks[half:])
    await fleet.routers[0].kill()
    await asyncio.gather(*tasks)
    problems = find_problems(references, requests[half:], responses[half:])
    if not any(response.error for response in responses[:half]):
        problems.append("no connection of the killed router was open")
    fleet.routers[0] = fleet.start_router(0)
    await fleet.routers[0].ready()
    await fleet.wait_until_healthy()
    return problems + await _all_succeed(fleet, references, requests)


async def lose_all(fleet: Fleet, references: References, kinds: Sequence[RequestKind], num_streams: int) -> list[str]:
    """Kill all replicas: each response ends with an error, also those that come then, until the replicas are back."""
    requests = requests_of(kinds, num_streams)
    urls = [fleet.routers[0].url] * len(requests)
    responses, tasks = await _start(fleet, references, requests, urls)
    await _wait_for_tokens(responses, tasks)
    for replica in fleet.replicas:
        replica.send_signal(signal.SIGKILL)
    problems = _ends_without_error(requests, *await _finished(responses, tasks))
    late, tasks = await _start(fleet, references, requests[:NUM_REPLICAS], urls)
    problems += _ends_without_error(requests, *await _finished(late, tasks))
    problems += [f"status {each.status} without replicas" for each in late if each.status not in {502, 503}]
    await asyncio.gather(*(fleet.restart(index) for index in range(NUM_REPLICAS)))
    await fleet.wait_until_healthy()
    return problems + await _all_succeed(fleet, references, requests)


async def kill_two(fleet: Fleet, references: References, kinds: Sequence[RequestKind], num_streams: int) -> list[str]:
    """Kill two of three replicas one after the other: some responses go on twice."""
    requests = requests_of(kinds, num_streams)
    responses, tasks = await _start(fleet, references, requests, [fleet.routers[0].url] * len(requests))
    for victim, num_delivered in ((0, NUM_DELIVERED), (1, 3 * NUM_DELIVERED)):
        await _wait_for_tokens(responses, tasks, num_delivered)
        fleet.replicas[victim].send_signal(signal.SIGKILL)
    num_open = sum(not task.done() for task in tasks)
    await asyncio.gather(*tasks)
    problems = find_problems(references, requests, responses)
    if not num_open:
        problems.append("all responses were complete before the second replica was killed")
    await asyncio.gather(fleet.restart(0), fleet.restart(1))
    await fleet.wait_until_healthy()
    return problems


async def fill_replica(
    fleet: Fleet, references: References, kinds: Sequence[RequestKind], num_streams: int
) -> list[str]:  # fmt: skip
    """Send all requests at once to a fleet whose first replica has room for one waiting request and answers 429."""
    problems = await _all_succeed(fleet, references, requests_of(kinds, num_streams))
    async with fleet.http.get(fleet.replicas[0].url + "/metrics") as page:
        lines = (await page.text()).splitlines()
    rejected = [line for line in lines if line.startswith("chairlift_requests_rejected_total{")]
    if not any("overloaded" in line or "queue" in line for line in rejected):
        problems.append(f"the full replica has rejected nothing: {rejected}")
    return problems


SCENARIOS: dict[str, Scenario] = {
    "kill -9 of a router": kill_router, "two replicas killed": kill_two, "all replicas killed": lose_all,
}  # fmt: skip
"""Scenarios that every fleet can run."""


async def _start(
    fleet: Fleet, references: References, requests: Requests, urls: Sequence[str]
) -> tuple[list[ReceivedResponse], list[asyncio.Task[None]]]:
    await references.prepare(requests)
    responses = [ReceivedResponse() for _ in requests]
    tasks = [
        asyncio.create_task(receive(fleet, url, kind, number, references.body(kind, number), response, lambda: None))
        for (kind, number), url, response in zip(requests, urls, responses, strict=False)
    ]
    return responses, tasks


async def _wait_for_tokens(
    responses: Sequence[ReceivedResponse], tasks: Sequence[asyncio.Task[None]], num_delivered: int = NUM_DELIVERED
) -> None:  # fmt: skip
    while not any(each.num_tokens >= num_delivered for each in responses) and not all(task.done() for task in tasks):
        await asyncio.sleep(0.002)


async def _finished(
    responses: list[ReceivedResponse], tasks: Sequence[asyncio.Task[None]]
) -> tuple[list[ReceivedResponse], list[bool]]:
    """Return the responses, and whether each one ended in time."""
    done, pending = await asyncio.wait(tasks, timeout=MAX_ERROR_SECONDS)
    for task in pending:
        task.cancel()
    return responses, [task in done for task in tasks]


def _ends_without_error(
    requests: Requests, responses: Sequence[ReceivedResponse], are_done: Sequence[bool]
) -> list[str]:
    """Return the responses that end neither complete nor with an error that their client sees."""
    problems = []
    for (kind, number), response, is_done in zip(requests, responses, are_done, strict=False):
        body = bytes(response.body)
        is_complete = body.endswith(b"data: [DONE]\n\n")
        has_error = b'{"error":{' in body
        if not is_done:
            problems.append(f"{kind.name} {number}: no end within {MAX_ERROR_SECONDS:g} s")
        elif response.error:
            problems.append(f"{kind.name} {number}: {response.error}")
        elif is_complete == has_error:
            problems.append(f"{kind.name} {number}: status {response.status}, the body ends with {body[-200:]!r}")
    return problems


async def _all_succeed(fleet: Fleet, references: References, requests: Requests) -> list[str]:
    urls = [fleet.routers[at % 2].url for at in range(len(requests))]
    responses, tasks = await _start(fleet, references, requests, urls)
    await asyncio.gather(*tasks)
    return find_problems(references, requests, responses)
