"""GenerationOutput: what a manager delivers of one request, with the fields of transformers' class of this name."""

import time
from typing import Any

from chairlift.llm.transformers_compat.request_status import RequestStatus


class GenerationOutput:
    """The output of one request so far, or the whole of it.

    An output never changes. The outputs of a stream share their lists of tokens, of which each sees the beginning, so
    a stream of n tokens costs O(n) and not O(n^2); `generated_tokens`, `logprobs` and `timestamps` copy when they are
    read for the first time.

    Attributes:
        request_id: id of the request.
        prompt_ids: token ids of the prompt.
        error: why the request failed; None for one that did not.
        status: status of the request when the output was made.
        created_time: seconds of time.perf_counter() when the request was added.
        lifespan: seconds of time.perf_counter() when it was first scheduled and when it ended; -1 for not yet.
        finish_reason: "stop", "length", "abort" or "error" of a request that has ended, else None.
        num_cached_tokens: prompt tokens from the prefix cache, of a request that has ended.
    """

    __slots__ = (
        "_logprobs",
        "_num_shared",
        "_timestamps",
        "_tokens",
        "created_time",
        "error",
        "finish_reason",
        "lifespan",
        "num_cached_tokens",
        "prompt_ids",
        "request_id",
        "status",
    )

    def __init__(
        self, request_id: str, prompt_ids: list[int] | None = None, generated_tokens: list[int] | None = None,
        logprobs: list[float] | None = None, error: str | None = None, status: RequestStatus = RequestStatus.PENDING,
        created_time: float | None = None, lifespan: tuple[float, float] = (-1, -1),
        timestamps: list[float] | None = None, *, finish_reason: str | None = None, num_cached_tokens: int = 0,
        num_tokens: int | None = None,
    ) -> None:  # fmt: skip
        """Make an output; with `num_tokens` the lists are copied when they are read, that many of their entries."""
        self.request_id = request_id
        self.prompt_ids = prompt_ids if prompt_ids is not None else []
        self._tokens = generated_tokens if generated_tokens is not None else []
        self._logprobs = logprobs if logprobs is not None else []
        self._timestamps = timestamps
        self._num_shared = num_tokens
        self.error = error
        self.status = status
        self.created_time = time.perf_counter() if created_time is None else created_time
        self.lifespan = lifespan
        self.finish_reason = finish_reason
        self.num_cached_tokens = num_cached_tokens

    @property
    def generated_tokens(self) -> list[int]:
        """The generated token ids, a token that ends the sequence included."""
        self._copy_lists()
        return self._tokens

    @property
    def logprobs(self) -> list[float]:
        """The logprob of each generated token where the manager returns logprobs, else nothing."""
        self._copy_lists()
        return self._logprobs

    @property
    def timestamps(self) -> list[float] | None:
        """Seconds of time.perf_counter() at which each token came, where requested."""
        self._copy_lists()
        return self._timestamps

    def _copy_lists(self) -> None:
        """Copy the lists, once: those of the request go on. Two threads at once copy twice, which changes nothing."""
        count = self._num_shared
        if count is not None:
            self._tokens, self._logprobs = self._tokens[:count], self._logprobs[:count]
            self._timestamps = None if self._timestamps is None else self._timestamps[:count]
            self._num_shared = None

    def is_finished(self) -> bool:
        """Return whether the request has ended: it is finished, failed or cancelled."""
        return self.status >= RequestStatus.FINISHED

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GenerationOutput):
            return NotImplemented
        return self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return (
            f"GenerationOutput(request_id={self.request_id!r}, status={self.status.name}, "
            f"generated_tokens={self.generated_tokens}, error={self.error!r}, finish_reason={self.finish_reason!r})"
        )

    def _values(self) -> tuple[Any, ...]:
        return (
            self.request_id, self.prompt_ids, self.generated_tokens, self.logprobs, self.error, self.status,
            self.created_time, self.lifespan, self.timestamps, self.finish_reason, self.num_cached_tokens,
        )  # fmt: skip
