"""Preparing: requests whose grammars are being made. They are in nobody's line yet, and can end there.

submit ──► threads make the grammars ──► the engine's line
      └──► refused, aborted, too late ──► its last Output
"""

import logging
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf

from chairlift.core.errors import ChairliftError, EngineDead, QueueFull, RequestTimeout, StructuredOutputFailed
from chairlift.core.request import EngineOutput, FinishReason, GenerateRequest
from chairlift.engine.request_limits import ValidatedRequest
from chairlift.engine.structured.grammar import Grammar

log = logging.getLogger(__name__)

Grammars = tuple[Grammar, ...]


@dataclass(slots=True)
class CompiledRequest:
    """A request that is ready for the line.

    Attributes:
        validated: the request.
        grammars: one a choice.
        waited: seconds since it was submitted.
        unwanted: choices that were aborted meanwhile.
    """

    validated: ValidatedRequest
    grammars: Grammars
    waited: float
    aborted_choices: list[int]


@dataclass(slots=True)
class _CompilingRequest:
    validated: ValidatedRequest
    grammars: "Future[Grammars]"
    since: float
    aborted_choices: list[int] = field(default_factory=list)

    @property
    def request(self) -> GenerateRequest:
        return self.validated.request

    @property
    def deadline(self) -> float:
        return inf if self.request.timeout is None else self.since + self.request.timeout


class CompileQueue:
    """Owns what is between submission and the line. For one thread, the engine's."""

    def __init__(self, limit: int) -> None:
        """Make room for so many."""
        self._limit = limit
        self._waiting: dict[str, _CompilingRequest] = {}
        self._earliest = inf  # nobody's time is up before

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all of them."""
        return sum(len(each.request.prompt_token_ids) for each in self._waiting.values())

    def add(self, validated: ValidatedRequest, grammars: "Future[Grammars]", since: float) -> list[EngineOutput]:
        """Take a request in that was submitted at `since`, in seconds of time.monotonic().

        Returns its last Output where there is no room for it.
        """
        if len(self._waiting) >= self._limit:
            grammars.cancel()
            return [EngineOutput.failed(validated.request, QueueFull(len(self._waiting), self._limit))]
        waiting = self._waiting[validated.request_id] = _CompilingRequest(validated, grammars, since)
        self._earliest = min(self._earliest, waiting.deadline)
        return []

    def take(self, request_id: str, grammars: "Future[Grammars]") -> CompiledRequest | list[EngineOutput]:
        """Take the request out whose grammars these are, now that they are made.

        Its last Output where they cannot be; nothing where it has ended meanwhile.
        """
        assert grammars.done(), "a request is taken whose grammars are not made"
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.grammars is not grammars:
            return []
        request = waiting.request
        if waiting.grammars.cancelled():
            return self._ended(request, EngineDead("the engine was closed"))
        if (error := waiting.grammars.exception()) is not None:
            if not isinstance(error, ChairliftError):
                log.error("a structure could not be compiled", exc_info=error)
                error = StructuredOutputFailed(f"the structure could not be compiled: {error}")
            return self._ended(request, error)
        now = time.monotonic()
        if waiting.deadline <= now:
            return self._ended(request, RequestTimeout(request.timeout or 0.0))
        del self._waiting[request.request_id]
        return CompiledRequest(
            waiting.validated, waiting.grammars.result(), now - waiting.since, waiting.aborted_choices
        )

    def abort(self, request_id: str, index: int | None) -> EngineOutput | None:
        """End a request, or note that one choice of it is not wanted; its last Output if this is the end of it."""
        waiting = self._waiting[request_id]
        if index is not None:
            waiting.aborted_choices.append(index)
            return None
        self._leave(waiting)
        return EngineOutput.ended(waiting.request, FinishReason.ABORT)

    def expire(self) -> list[EngineOutput]:
        """End those whose time is up; returns their last Outputs."""
        now = time.monotonic()
        if now < self._earliest:
            return []
        late = [each for each in self._waiting.values() if each.deadline <= now]
        for each in late:
            self._leave(each)
        self._earliest = min((each.deadline for each in self._waiting.values()), default=inf)
        return [EngineOutput.failed(each.request, RequestTimeout(each.request.timeout or 0.0)) for each in late]

    def seconds_to_next_deadline(self) -> float | None:
        """Return seconds until somebody's time may be up; None when that never happens."""
        return None if self._earliest == inf else max(self._earliest - time.monotonic(), 0.0)

    def close(self) -> None:
        """Forget them."""
        self._waiting.clear()
        self._earliest = inf

    def _ended(self, request: GenerateRequest, error: ChairliftError) -> list[EngineOutput]:
        del self._waiting[request.request_id]
        return [EngineOutput.failed(request, error)]

    def _leave(self, waiting: _CompilingRequest) -> None:
        del self._waiting[waiting.request.request_id]
        waiting.grammars.cancel()
