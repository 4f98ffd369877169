"""Sends requests at the times of a schedule, whatever the fleet does (open loop), and checks each response."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

PROMPTS = tuple(f"Tell me about number {number} and the fox" for number in range(8))
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A constant rate of a Poisson process.

    Attributes:
        seconds: length of the phase.
        rate: requests per second.
    """

    seconds: float
    rate: float

    @classmethod
    def parse(cls, text: str) -> "Phase":
        """Return the phase of `SECONDS:RATE`."""
        seconds, _, rate = text.partition(":")
        return cls(seconds=float(seconds), rate=float(rate))


@dataclass(slots=True)
class Response:
    """One response.

    Attributes:
        sent_at: seconds since the start.
        first_token_seconds: time to the first token; None without one.
        seconds: time to the end.
        error: what was wrong; "" for a complete response that equals the reference.
    """

    sent_at: float
    first_token_seconds: float | None = None
    seconds: float = 0.0
    error: str = ""


class Client:
    """Sends requests to one fleet."""

    def __init__(self, session: aiohttp.ClientSession, url: str, max_tokens: int) -> None:
        self._session, self._url, self._max_tokens = session, url, max_tokens
        self._references: dict[str, str] = {}

    async def learn_references(self) -> None:
        """Read the undisturbed output of each prompt."""
        for prompt in PROMPTS:
            text, _, error = await self._read(prompt, time.monotonic())
            assert not error, error
            self._references[prompt] = text

    async def run(self, phases: Sequence[Phase], seed: int, started_at: float) -> list[Response]:
        """Send all requests of the phases; returns their responses."""
        rng, at, tasks = random.Random(seed), 0.0, list[asyncio.Task[Response]]()
        ends = 0.0
        for phase in phases:
            begins, ends = ends, ends + phase.seconds
            at = begins
            while (at := at + rng.expovariate(phase.rate)) < ends:
                await asyncio.sleep(max(0.0, started_at + at - time.monotonic()))
                tasks.append(asyncio.create_task(self._send(rng.choice(PROMPTS), started_at)))
            await asyncio.sleep(max(0.0, started_at + ends - time.monotonic()))
        return await asyncio.gather(*tasks)

    async def _send(self, prompt: str, started_at: float) -> Response:
        now = time.monotonic()
        response = Response(sent_at=now - started_at)
        text, first, response.error = await self._read(prompt, now)
        response.first_token_seconds, response.seconds = first, time.monotonic() - now
        if not response.error and text != self._references[prompt]:
            response.error = "another output than the undisturbed one"
        return response

    async def _read(self, prompt: str, now: float) -> tuple[str, float | None, str]:
        """Return the text, the time to the first token and what was wrong."""
        body = {
            "model": "chairlift:demo", "prompt": prompt, "max_tokens": self._max_tokens, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        parts, first, is_done = list[str](), None, False
        try:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            async with self._session.post(f"{self._url}/v1/completions", json=body, timeout=timeout) as response:
                if response.status != 200:
                    return "", None, f"status {response.status}: {(await response.text())[:200]}"
                async for line in response.content:
                    if line.startswith(b"data: [DONE]"):
                        is_done = True
                    elif line.startswith(b"data: {"):
                        fields = json.loads(line[6:])
                        if "error" in fields:
                            return "", first, str(fields["error"].get("message"))
                        if first is None:
                            first = time.monotonic() - now
                        parts += [choice["text"] for choice in fields["choices"]]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return "", first, f"{type(error).__name__}: {error}"
        return "".join(parts), first, "" if is_done else "the stream has no [DONE]"
