"""Generate: one request's work, from its permit to its last byte, streamed or whole."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Protocol

import orjson

from chairlift.core.errors import (
    ChairliftError,
    DeadlineUnreachable,
    EngineDead,
    InvalidRequest,
    Overloaded,
    QueueFull,
    error_from_wire,
)
from chairlift.core.request import FinishReason, Timeline, Usage
from chairlift.llm.output_processor import Assembler
from chairlift.llm.outputs import RequestOutput, TextEvent
from chairlift.protocol.sse import DONE, named_event
from chairlift.server.openai.parse_request import Asked
from chairlift.server.openai.response import Renderer, total
from chairlift.server.replica import Replica
from chairlift.server.telemetry import Telemetry
from chairlift.web.admission import Permit
from chairlift.web.body import ClientGone, Receive, Scope, Send
from chairlift.web.disconnect import Presence
from chairlift.web.error_responses import UNKNOWN, Header, answer_of, error_object
from chairlift.web.middleware import send_bytes
from chairlift.web.tenant_limits import Share
from chairlift.web.write_timeout import Patience

log = logging.getLogger(__name__)

Batch = list[tuple[int, TextEvent]]
SHORT_TOKENS = 4096
"""Of an answer, with the likeliest ones beside them, which become JSON on the event loop, in a millisecond or few."""

REFUSED = frozenset({400, 429})
"""Statuses with which the engine says that it takes a request not, or not now."""

STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Job(Protocol):
    """What a route does in its own way."""

    @property
    def timeout(self) -> float | None:
        """Seconds that it may take."""
        ...

    @property
    def is_quick(self) -> bool:
        """Whether assemblers() goes over the body no more than once, and runs nobody's program."""
        ...

    def assemblers(self) -> list[Assembler]:
        """Make the requests, in any thread. Raises InvalidRequest."""
        ...

    def renderer(self, assemblers: Sequence[Assembler]) -> Renderer:
        """Return who writes the answer."""
        ...


class _Ride:
    """What is noted of one request while it is worked for."""

    def __init__(
        self, telemetry: Telemetry, permit: Permit, began: float, assemblers: Sequence[Assembler], asked: Asked
    ) -> None:
        self._form, self._is_stream = asked.form, asked.stream
        self._telemetry = telemetry
        self._permit = permit
        self._began = began
        self._prompts = [len(assembler.request.prompt_token_ids) for assembler in assemblers]
        self._last: dict[tuple[int, int], float] = {}
        self._usages: list[Usage] = []
        self._output_tokens = 0
        self._timeline: Timeline | None = None
        self._reason = ""

    def take(self, batch: Batch) -> tuple[Batch, ChairliftError | None]:
        """Note news; returns what can be told of it, and the error that ends the whole request, if one does."""
        now = time.monotonic()
        for place, (number, event) in enumerate(batch):
            self._timeline = event.timeline or self._timeline
            self._note_tokens(number, event, now)
            if event.error is not None:  # many requests may share this one
                error = in_words(
                    error_from_wire(event.error.code, event.error.message, event.error.details), self._form
                )
                return [*batch[:place], (number, replace(event, finish_reason=None, error=None))], error
            if event.usage is not None:
                self._usages.append(event.usage)
                if len(self._usages) == len(self._prompts):
                    self._permit.left()
            self._reason = self._reason or event.finish_reason or ""
        return batch, None

    def _note_tokens(self, number: int, event: TextEvent, now: float) -> None:
        if not event.token_ids:
            return
        self._permit.started()
        if not self._last:
            self._telemetry.first_token(now - self._began)
        last = self._last.get((number, event.index))
        gap = now - last if last is not None and self._is_stream else None  # of a whole answer nobody sees a part
        self._telemetry.news(len(event.token_ids), gap)
        self._last[number, event.index] = now
        self._output_tokens += len(event.token_ids)

    @property
    def usage(self) -> Usage:
        """What it has taken: as the engine says, or as far as it came."""
        found = total(self._usages)
        if len(self._usages) == len(self._prompts):
            return found
        return Usage(sum(self._prompts), self._output_tokens, found.cached_tokens)

    @property
    def _was_worked_for(self) -> bool:
        """Whether the engine has taken it on board."""
        moments = () if self._timeline is None else self._timeline.events
        return bool(self._last) or any(moment.name == "scheduled" for moment in moments)

    def end(self, request_id: str, error: BaseException | None) -> None:
        """Note the end, whatever it was; the permit is given back."""
        usage = self.usage
        used = usage.prompt_tokens + usage.completion_tokens if self._was_worked_for else 0
        self._permit.end(used, makes_room=not isinstance(error, EngineDead))
        if isinstance(error, ChairliftError) and not self._was_worked_for and answer_of(error).status in REFUSED:
            self._telemetry.refused(error.code)
            return
        outcome = self._reason or "abort"
        if isinstance(error, ClientGone | asyncio.CancelledError):
            outcome = "abort"
        elif error is not None:
            outcome = error.code if isinstance(error, ChairliftError) else "internal_error"
        if outcome == FinishReason.ABORT:
            self._telemetry.aborted("client" if isinstance(error, ClientGone) else "server")
        self._telemetry.over(request_id, outcome, time.monotonic() - self._began, usage, self._timeline)


async def generate(
    replica: Replica, scope: Scope, receive: Receive, send: Send, asked: Asked, job: Job, began: float
) -> None:  # fmt: skip
    """Make the requests of one body, run them and answer. Raises what they raise before anything was sent.

    Who may not come in, or would wait too long, is told so before its text becomes tokens.
    """
    scope["user_named"] = asked.user
    headers = replica.ignored(asked.ignored)
    replica.lifecycle.check()
    share = permit = None
    ride: _Ride | None = None
    error: BaseException | None = None
    try:
        share = replica.tenants.begin(scope["principal"].tenant)
        permit = _permit(replica, scope, job.timeout, share)
        async with Presence(receive) as presence:
            assemblers = await replica.by_size(job.assemblers, scope, is_quick=job.is_quick)
            prompt = sum(len(each.request.prompt_token_ids) for each in assemblers)
            most = sum(each.request.params.max_tokens or 0 for each in assemblers) * asked.params.num_choices
            permit.weigh(prompt)
            share.reserve(prompt + most)
            renderer = job.renderer(assemblers)
            ride = _Ride(replica.telemetry, permit, began, assemblers, asked)
            scope["begun"] = True
            async with aclosing(replica.llm.run(assemblers, at_once=asked.stream)) as batches:
                if asked.stream:
                    with Patience(scope, send, replica.config.write_seconds) as patience:
                        stream = _Stream(patience.send, headers, renderer, ride)
                        error = await stream.run(batches, scope["request_id"], with_usage=asked.include_usage)
                else:
                    async for batch in batches:
                        if (fault := ride.take(batch)[1]) is not None:
                            raise fault
                    body = partial(_whole, renderer, [assembler.result() for assembler in assemblers])
                    tokens = ride.usage.completion_tokens + (ride.usage.prompt_tokens if asked.params.echo else 0)
                    is_long = tokens * (1 + (asked.params.logprobs or 0)) > SHORT_TOKENS
                    await send_bytes(send, await replica.in_thread(body) if is_long else body(), headers=headers)
            presence.over()
    except BaseException as fault:
        error = fault
        if share is not None and isinstance(fault, Overloaded | QueueFull | DeadlineUnreachable):
            share.spare()
        raise
    finally:
        if ride is not None:
            ride.end(scope["request_id"], error)
        else:
            if permit is not None:
                permit.end()
            elif share is not None:
                share.end(0)
            if isinstance(error, ClientGone):
                replica.telemetry.aborted("client")
        error = None  # its traceback has this frame, and so they would hold each other until garbage is looked for


def _permit(replica: Replica, scope: Scope, timeout: float | None, share: Share) -> Permit:
    """Return the permit that a request has from the gate, or else a new one. Raises Overloaded."""
    permit: Permit | None = scope.get("permit")
    if permit is None:
        return replica.line.admit(0, timeout=timeout, spent=share.end)
    permit.take_on(timeout, share.end)
    return permit


def _whole(renderer: Renderer, results: list[RequestOutput]) -> bytes:
    return orjson.dumps(renderer.whole(results))


def in_words(error: ChairliftError, form: str) -> ChairliftError:
    """Return an error of a structure that means nothing by the field in which the client has asked for it."""
    if not form or error.details.get("param") != "structured":
        return error
    return InvalidRequest(re.sub(r"^structured(\.\w+)?", form, error.message), param=form)


class _Stream:
    """A streamed answer. Nothing is sent before the first news, so that what fails before it gets a status."""

    def __init__(self, send: Send, headers: list[Header], renderer: Renderer, ride: _Ride) -> None:
        self._send = send
        self._headers = headers
        self._renderer = renderer
        self._ride = ride
        self._has_begun = False

    async def run(
        self, batches: AsyncGenerator[Batch, None], request_id: str, *, with_usage: bool
    ) -> Exception | None:  # fmt: skip
        """Send news as it comes. An error behind the first of it is the stream's last event, and returned."""
        fault: ChairliftError | None = None
        try:
            async for batch in batches:
                news, fault = self._ride.take(batch)
                if fault is not None and not self._has_begun:
                    raise fault
                await self._write(b"".join([self._renderer.event(number, event) for number, event in news]))
                if fault is not None:
                    raise fault
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception as error:
            if not self._has_begun:
                raise
            told = orjson.dumps({"error": error_object(error, request_id)})
            await self._write(named_event(b"error", told), more=False)
            if answer_of(error) is UNKNOWN:
                log.error("the stream failed", exc_info=error)
            else:
                log.info("the stream ended: %s", error)
            return error
        finally:
            fault = None  # as in generate()
        last = self._renderer.usage(self._ride.usage) if with_usage else b""
        await self._write(last + DONE, more=False)
        return None

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        if not body and more:
            return
        if not self._has_begun:
            self._has_begun = True
            headers = [*STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
