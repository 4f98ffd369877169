"""SoakRun: runs traffic and faults side by side with idle times between, and samples the server throughout."""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

from soak.bad_requests import CHAT, MODEL
from soak.clients import Clients
from soak.fault_injection import PLAN, InjectedFault, inject_fault
from soak.raw_client import Outcome, build_request, send_request
from soak.server_samples import IdleSample, ServerSample, fetch_state, take_sample
from soak.soak_server import KEYS, SoakServer

ROUNDS = 10
"""Number of rounds of traffic, each with an idle time at its end."""

SAMPLE_INTERVAL_SECONDS = 2.0
LOAD_SHARE = 0.6
"""Average load as a share of the measured capacity, bursts included."""

BURST_INTERVAL_SECONDS = 30.0
BURST_REQUESTS = 60
"""Requests of a burst: more than the admission queue admits."""

IDLE_TIMEOUT_SECONDS = 30.0
"""Longest time until the server has to be idle after its last request; the restart of a killed engine takes long."""

IDLE_POLL_SECONDS = 0.3
CAPACITY_SECONDS = 15.0
"""Longest measurement of the capacity."""

REFERENCE_MAX_BYTES = 2**20
KEY = next(iter(KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Options of a soak test.

    Attributes:
        seconds: duration.
        seed: seed of the traffic.
        rate: requests per second; 0 for LOAD_SHARE of the measured capacity.
    """

    seconds: float
    seed: int = 1
    rate: float = 0.0


@dataclass(slots=True)
class Measurements:
    """The measurements of a soak test.

    Attributes:
        samples: samples of the server, in order; times are seconds since the start.
        idle_samples: samples of the idle server, in order.
        faults: faults that were injected; times are seconds of the monotonic clock.
        capacity: requests per second in a closed loop.
        rate: requests per second that are sent, without bursts.
    """

    samples: list[ServerSample] = field(default_factory=list)
    idle_samples: list[IdleSample] = field(default_factory=list)
    faults: list[InjectedFault] = field(default_factory=list)
    capacity: float = 0.0
    rate: float = 0.0


class SoakRun:
    """One soak test of a server that is ready."""

    def __init__(self, server: SoakServer, options: SoakOptions) -> None:
        self.measurements = Measurements()
        self.clients = Clients(server.process.port, options.seed)
        self.started_at = 0.0
        self._server = server
        self._options = options
        self._reference = b""
        self._num_references = 0

    async def run(self) -> None:
        """Run the whole test. Raises RuntimeError if the first reference request fails."""
        self._reference = await self._reference_response()
        if not self._reference:
            raise RuntimeError("the reference request got no complete response with status 200")
        self.started_at = time.monotonic()
        sampling = asyncio.create_task(self._sample_forever())
        faults = asyncio.create_task(self._inject_faults())
        try:
            await self._measure_capacity()
            for number in range(ROUNDS):
                await self._run_round(self.started_at + self._options.seconds * (number + 1) / ROUNDS)
            await faults
        finally:
            for task in (sampling, faults):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.measurements.samples.append(await self._sample())

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    async def _measure_capacity(self) -> None:
        """Measure the capacity, and set the rate: the given one, or one for LOAD_SHARE of the capacity."""
        seconds = min(CAPACITY_SECONDS, self._options.seconds / 20)
        self.measurements.capacity = capacity = await self.clients.run_closed_loop(seconds)
        share = max(1.0, LOAD_SHARE * capacity - BURST_REQUESTS / BURST_INTERVAL_SECONDS)
        self.measurements.rate = self._options.rate or share

    async def _run_round(self, until: float) -> None:
        """Send requests with bursts until a monotonic time, then wait until the server is idle."""
        while (seconds_left := until - time.monotonic()) > 0:
            next_burst = time.monotonic() + min(seconds_left, BURST_INTERVAL_SECONDS)
            await self.clients.send_burst(BURST_REQUESTS)
            await self.clients.run_open_loop(self.measurements.rate, next_burst)
        await self.clients.wait_until_done()
        self.measurements.idle_samples.append(await self._sample_idle())

    async def _sample_idle(self) -> IdleSample:
        """Wait until the server is idle or the timeout passes, and sample it."""
        deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
        num_requests, used_blocks, integrity_errors = -1, -1, ["no response to /admin/state"]
        while time.monotonic() < deadline:
            if state := await fetch_state(self._server.process.port):
                num_requests = state["scheduler"]["active_requests"] + state["scheduler"]["waiting_requests"]
                used_blocks, integrity_errors = state["cache"]["allocated_blocks"], state["integrity_errors"]
                if num_requests == used_blocks == 0:
                    break
            await asyncio.sleep(IDLE_POLL_SECONDS)
        reference_matches = await self._reference_response() == self._reference
        await asyncio.sleep(IDLE_POLL_SECONDS)  # the connection of the reference request closes meanwhile
        return IdleSample(
            sample=await self._sample(), is_idle=num_requests == used_blocks == 0, num_requests=num_requests,
            used_blocks=used_blocks, integrity_errors=tuple(integrity_errors), reference_matches=reference_matches,
        )  # fmt: skip

    async def _reference_response(self) -> bytes:
        """Return the response to the reference request without its time; empty if the request fails.

        Each call uses a new cache salt, so that the prefix cache has no effect.
        """
        self._num_references += 1
        body = {
            "model": MODEL, "messages": [{"role": "user", "content": "What is 17 plus 25?"}], "temperature": 0,
            "max_tokens": 32, "logprobs": True, "cache_salt": f"reference-{self._num_references}",
        }  # fmt: skip
        data = build_request(
            "POST", CHAT, json.dumps(body).encode(), authorization=f"Bearer {KEY}", x_request_id="reference"
        )
        result = await send_request(self._server.process.port, data, keep_bytes=REFERENCE_MAX_BYTES)
        if result.outcome is not Outcome.RESPONSE or result.status != 200:
            return b""
        response = json.loads(result.body)
        del response["created"]
        return json.dumps(response).encode()

    async def _sample(self) -> ServerSample:
        return await take_sample(self._server, self.elapsed_seconds, KEY)

    async def _sample_forever(self) -> None:
        while True:
            self.measurements.samples.append(await self._sample())
            await asyncio.sleep(SAMPLE_INTERVAL_SECONDS)

    async def _inject_faults(self) -> None:
        for share, fault in PLAN:
            await asyncio.sleep(max(0.0, share * self._options.seconds - self.elapsed_seconds))
            self.measurements.faults.append(await inject_fault(fault, self._server, KEY))

    def since_start(self, fault: InjectedFault) -> InjectedFault:
        """Return a fault with its times in seconds since the start."""
        until = fault.effects_until
        return replace(
            fault, started_at=fault.started_at - self.started_at,
            effects_until=None if until is None else until - self.started_at,
        )  # fmt: skip
