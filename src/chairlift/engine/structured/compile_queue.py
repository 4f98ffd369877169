"""CompileQueue: holds requests while their grammars are compiled, before the scheduler knows them.

submit ──► threads compile the grammars ──► the scheduler's waiting queue
      └──► rejected, aborted, timed out ──► the final EngineOutput
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from math import inf

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import ChairliftError, EngineDead, QueueFull, RequestTimeout, StructuredOutputFailed
from chairlift.core.request import GenerateRequest
from chairlift.engine.request_validation import ValidatedRequest
from chairlift.engine.structured.grammar_matcher import GrammarMatcher

log = logging.getLogger(__name__)

Grammars = tuple[GrammarMatcher, ...]


@dataclass(slots=True)
class CompiledRequest:
    """A request whose grammars are compiled, ready for the scheduler.

    Attributes:
        validated: the request.
        grammars: one a choice.
        waited: seconds since the request was submitted.
        aborted_choices: indices of choices that were aborted during compilation.
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
    number: int
    aborted_choices: list[int] = field(default_factory=list)

    @property
    def request(self) -> GenerateRequest:
        return self.validated.request

    @property
    def deadline(self) -> float:
        return inf if self.request.timeout is None else self.since + self.request.timeout


class CompileQueue:
    """Holds requests between submission and the scheduler. Only the engine thread uses it."""

    def __init__(self, limit: int) -> None:
        """Create a queue that holds at most `limit` requests."""
        self._limit = limit
        self._waiting: dict[str, _CompilingRequest] = {}
        self._earliest_deadline = inf
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def requests(self) -> Iterator[tuple[int, GenerateRequest, float]]:
        """Yield the number of each request, the request and the seconds that it has waited, in order of arrival."""
        now = time.monotonic()
        return ((each.number, each.request, now - each.since) for each in self._waiting.values())

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of all requests in the queue."""
        return sum(len(each.request.prompt_token_ids) for each in self._waiting.values())

    def add(self, validated: ValidatedRequest, grammars: "Future[Grammars]", since: float) -> list[EngineOutput]:
        """Add a request that was submitted at `since`, in seconds of time.monotonic().

        Returns its final output if the queue is full.
        """
        if len(self._waiting) >= self._limit:
            grammars.cancel()
            return [EngineOutput.failed(validated.request, QueueFull(len(self._waiting), self._limit))]
        waiting = _CompilingRequest(validated, grammars, since, next(self._numbers))
        self._waiting[validated.request_id] = waiting
        self._earliest_deadline = min(self._earliest_deadline, waiting.deadline)
        return []

    def take(self, request_id: str, grammars: "Future[Grammars]") -> CompiledRequest | list[EngineOutput]:
        """Remove and return the request whose grammars are compiled.

        Returns its final output if the compilation failed, an empty list if the request has already ended.
        """
        assert grammars.done(), "take() needs compiled grammars"
        waiting = self._waiting.get(request_id)
        # The request may have ended, and another one may have its id.
        if waiting is None or waiting.grammars is not grammars:
            return []
        request = waiting.request
        if waiting.grammars.cancelled():
            return self._fail(request, EngineDead("the engine was closed"))
        if (error := waiting.grammars.exception()) is not None:
            if not isinstance(error, ChairliftError):
                log.error("a structured output could not be compiled", exc_info=error)
                error = StructuredOutputFailed(f"the structured output could not be compiled: {error}")
            return self._fail(request, error)
        now = time.monotonic()
        if waiting.deadline <= now:
            return self._fail(request, RequestTimeout(request.timeout or 0.0))
        del self._waiting[request.request_id]
        return CompiledRequest(
            waiting.validated, waiting.grammars.result(), now - waiting.since, waiting.aborted_choices
        )

    def abort(self, request_id: str, index: int | None) -> EngineOutput | None:
        """Abort a request, or one choice of it.

        Returns the final output if the whole request has ended.
        """
        waiting = self._waiting[request_id]
        if index is not None:
            # The grammars of the other choices are still compiled; this one is aborted when the scheduler knows it.
            waiting.aborted_choices.append(index)
            return None
        self._remove(waiting)
        return EngineOutput.ended(waiting.request, FinishReason.ABORT)

    def expire(self) -> list[EngineOutput]:
        """Remove the requests whose deadline has passed and return their final outputs."""
        now = time.monotonic()
        if now < self._earliest_deadline:
            return []
        expired = [each for each in self._waiting.values() if each.deadline <= now]
        for each in expired:
            self._remove(each)
        self._earliest_deadline = min((each.deadline for each in self._waiting.values()), default=inf)
        return [EngineOutput.failed(each.request, RequestTimeout(each.request.timeout or 0.0)) for each in expired]

    def seconds_to_next_deadline(self) -> float | None:
        """Return the seconds until a deadline may pass; None if no request has a deadline."""
        return None if self._earliest_deadline == inf else max(self._earliest_deadline - time.monotonic(), 0.0)

    def close(self) -> None:
        """Remove all requests without a final output."""
        self._waiting.clear()
        self._earliest_deadline = inf

    def _fail(self, request: GenerateRequest, error: ChairliftError) -> list[EngineOutput]:
        del self._waiting[request.request_id]
        return [EngineOutput.failed(request, error)]

    def _remove(self, waiting: _CompilingRequest) -> None:
        del self._waiting[waiting.request.request_id]
        waiting.grammars.cancel()
