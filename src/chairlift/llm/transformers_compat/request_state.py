"""RequestState: a request that a hand-driven scheduler or processor runs, with the fields of transformers' class."""

import copy
import time
from collections.abc import Iterable, Mapping
from typing import Any

from chairlift.core.request import GenerateRequest
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.sequence import Sequence
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.settings import ManagerSettings, request_params

GREEDY = ManagerSettings(sampling={"temperature": 0.0})
"""Settings of a request that names no parameters of its own."""


class RequestState:
    """A request and its progress. The scheduler changes it; the caller may add tokens to it.

    Attributes:
        request_id: id of the request.
        initial_tokens: token ids of the prompt.
        streaming: whether each new token has an output.
        record_timestamps: whether outputs have the time of each token.
        max_new_tokens: output tokens at most; None for as many as there is room for.
        eos_token_id: token ids that end the output.
        num_children: further outputs of the same prompt, with ids "<request_id>__child#<index>".
        logit_processor_kwargs: its own sampling parameters; without any it is greedy.
        tokens_to_process: token ids of the batch that was scheduled last.
        generated_tokens: output token ids.
        logprobs: the logprob of each of them, where known.
        position_offset: tokens before tokens_to_process.
        allocated_blocks: blocks that it holds.
        created_time: seconds of time.perf_counter().
        error: why it failed.
        lifespan: seconds of time.perf_counter() when it was first scheduled and when it ended; -1 for not yet.
        finish_reason: "stop", "length", "abort" or "error" once the engine has ended it.
        num_cached_tokens: prompt tokens from the prefix cache.
    """

    def __init__(
        self, request_id: str, initial_tokens: Iterable[int] | None = None, streaming: bool = False,
        record_timestamps: bool = False, max_new_tokens: int | None = 20,
        eos_token_id: int | Iterable[int] | None = None, num_children: int = 0,
        logit_processor_kwargs: Mapping[str, Any] | None = None, *, prompt_ids: Iterable[int] | None = None,
        full_prompt_ids: Iterable[int] | None = None, logprobs: Iterable[float] = (),
    ) -> None:  # fmt: skip
        """Make a request that is pending. `full_prompt_ids` and `prompt_ids` are older names of `initial_tokens`."""
        given = next((each for each in (initial_tokens, full_prompt_ids, prompt_ids) if each is not None), ())
        self.request_id = request_id
        self.initial_tokens = [int(token) for token in given]
        self.streaming, self.record_timestamps = streaming, record_timestamps
        self.max_new_tokens, self.num_children = max_new_tokens, num_children
        ids = () if eos_token_id is None else (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id)
        self.eos_token_id = tuple(token for token in ids if token >= 0)
        self.logit_processor_kwargs = dict(logit_processor_kwargs or {})
        self.tokens_to_process: list[int] = []
        self.generated_tokens: list[int] = []
        self.logprobs: list[float] = list(logprobs)
        self.position_offset = self.allocated_blocks = 0
        self.created_time = time.perf_counter()
        self.error: str | None = None
        self.lifespan: tuple[float, float] = (-1, -1)
        self.finish_reason: str | None = None
        self.num_cached_tokens = 0
        self._status = RequestStatus.PENDING
        self._timestamps: list[float] = []
        self._num_prompt_tokens = len(self.initial_tokens)

    # -- progress --------------------------------------------------------------------------------------------------

    @property
    def status(self) -> RequestStatus:
        """The status; setting it records when the request was first scheduled, and when it ended."""
        return self._status

    @status.setter
    def status(self, value: RequestStatus) -> None:
        now = time.perf_counter()
        started, ended = self.lifespan
        if started < 0 and value is not RequestStatus.PENDING:
            started = now
        if value >= RequestStatus.FINISHED and self._status < RequestStatus.FINISHED:
            ended = now
        self.lifespan = (started, ended)
        self._status = value

    @property
    def timestamps(self) -> list[float] | None:
        """Seconds of time.perf_counter() at which each token came; None unless they are recorded."""
        return self._timestamps if self.record_timestamps else None

    def current_len(self) -> int:
        """Return the number of tokens before those of the batch that was scheduled last."""
        return self.position_offset

    def generated_len(self) -> int:
        """Return the number of output tokens."""
        return len(self.generated_tokens)

    def update_and_check_completion(self, token_id: int, logprob: float | None = None) -> bool:
        """Append an output token; return whether the request is finished. Does nothing unless it is decoding."""
        if self.status is not RequestStatus.DECODING:
            return False
        self.append(token_id, logprob)
        limit = self.max_new_tokens
        if token_id in self.eos_token_id or (limit is not None and len(self.generated_tokens) >= limit):
            self.status = RequestStatus.FINISHED
        return self.status is RequestStatus.FINISHED

    def append(self, token_id: int, logprob: float | None = None) -> None:
        """Append an output token, which is the next to be processed."""
        if self.record_timestamps:
            self._timestamps.append(time.perf_counter())
        self.generated_tokens.append(token_id)
        self.tokens_to_process = [token_id]
        if logprob is not None:
            self.logprobs.append(logprob)

    def extend(self, token_ids: Iterable[int], logprobs: Iterable[float]) -> None:
        """Append output tokens, with the logprob of each or none."""
        known = list(logprobs)
        for place, token in enumerate(token_ids):
            self.append(token, known[place] if known else None)

    def follow(self, sequence: Sequence, start: int, end: int, *, is_sampled: bool) -> None:
        """Show the part of a batch that the scheduler gave to this request: its tokens from `start` to `end`."""
        self.position_offset = start
        self.tokens_to_process = sequence.token_ids[start:end]
        self.allocated_blocks = 0 if sequence.table is None else sequence.table.num_held
        self.num_cached_tokens = sequence.cached_tokens
        self.status = RequestStatus.DECODING if is_sampled else RequestStatus.PREFILLING

    # -- other forms -----------------------------------------------------------------------------------------------

    def to_generation_output(self) -> GenerationOutput:
        """Return the output so far, which does not change with the request."""
        prompt, rest = self.initial_tokens[: self._num_prompt_tokens], self.initial_tokens[self._num_prompt_tokens :]
        return GenerationOutput(
            self.request_id, prompt, [*rest, *self.generated_tokens], self.logprobs[:], self.error, self.status,
            self.created_time, self.lifespan, self._timestamps[:] if self.record_timestamps else None,
            finish_reason=self.finish_reason, num_cached_tokens=self.num_cached_tokens,
        )  # fmt: skip

    def to_request(self, limits: RequestLimits, settings: ManagerSettings = GREEDY, seed: int = 0) -> GenerateRequest:
        """Return the engine's request. Raises InvalidRequest for a parameter that is impossible."""
        params, _ = request_params(settings, max_new_tokens=self.max_new_tokens, **self.logit_processor_kwargs)
        room = max(1, limits.max_output_tokens(len(self.initial_tokens)))
        return GenerateRequest(
            request_id=self.request_id, prompt_token_ids=tuple(self.initial_tokens),
            params=params.with_defaults({}, max_tokens=room, seed=seed), eos_token_ids=self.eos_token_id,
        )  # fmt: skip

    def fork(self, new_request_id: str) -> "RequestState":
        """Return a copy with another id, which has just been created."""
        other = copy.deepcopy(self)
        other.request_id, other.created_time = new_request_id, time.perf_counter()
        other.lifespan, other._timestamps = (other.created_time, -1), []
        return other

    def children(self) -> list["RequestState"]:
        """Return the further requests of num_children, which are pending."""
        made = [self.fork(f"{self.request_id}__child#{index}") for index in range(self.num_children)]
        for child in made:
            child.num_children, child.lifespan = 0, (-1, -1)
        return made

    def get_request_config(self) -> dict[str, Any]:
        """Return the options with which an equal request can be made."""
        return {
            "streaming": self.streaming, "record_timestamps": self.record_timestamps,
            "max_new_tokens": self.max_new_tokens, "eos_token_id": list(self.eos_token_id),
            "num_children": self.num_children, "logit_processor_kwargs": copy.deepcopy(self.logit_processor_kwargs),
        }  # fmt: skip

    def create_equivalent_initial_request(self) -> "RequestState":
        """Return a pending request of the same id that goes on after the tokens generated so far."""
        options = self.get_request_config()
        if self.max_new_tokens is not None:
            options["max_new_tokens"] = self.max_new_tokens - len(self.generated_tokens)
        tokens = [*self.initial_tokens, *self.generated_tokens]
        other = RequestState(self.request_id, tokens, logprobs=self.logprobs, **options)
        other._num_prompt_tokens = self._num_prompt_tokens
        return other

    @property
    def remaining_prefill_tokens(self) -> list[int]:
        """Prompt tokens that were in no batch yet."""
        return self.initial_tokens[self.position_offset + len(self.tokens_to_process) :]

    remaining_prompt_ids = remaining_prefill_tokens

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the batch that was scheduled last, as older versions of transformers name them."""
        return self.tokens_to_process

    @property
    def full_prompt_ids(self) -> list[int]:
        """The prompt, as older versions of transformers name it."""
        return self.initial_tokens

    @property
    def static_outputs(self) -> list[int]:
        """The output tokens, as older versions of transformers name them."""
        return self.generated_tokens

    def __repr__(self) -> str:
        return (
            f"RequestState(request_id={self.request_id!r}, status={self.status.name}, "
            f"prompt_tokens={len(self.initial_tokens)}, generated_tokens={self.generated_tokens}, "
            f"position_offset={self.position_offset}, allocated_blocks={self.allocated_blocks})"
        )
