"""Service: an engine, its tokenizer and the model's defaults in one hand; prompts become GenerateRequests here."""

import itertools
import operator
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.core.errors import ContextLengthExceeded, InvalidRequest, TokenOutOfRange
from chairlift.core.request import GenerateRequest
from chairlift.core.sampling import SamplingParams
from chairlift.core.validation import integer
from chairlift.engine.client.base import EngineClient
from chairlift.engine.request_limits import MAX_REQUEST_ID_CHARS, validate_request
from chairlift.llm.output_processor import Assembler
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Resume = Sequence[Sequence[int]]
"""For each choice the output tokens that were delivered before."""

Message = Mapping[str, Any]

GLANCE_CHARS = 8
"""Of a text as many times the context are looked at before all of it becomes tokens."""

MAX_TENANT_CHARS = 256
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """What a request gets when it asks for nothing.

    Attributes:
        eos_token_ids: each of them ends an output.
        sampling: temperature, top_k, top_p, min_p, repetition_penalty where the model folder names them.
        max_tokens: None for as many as fit.
    """

    eos_token_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that a door of the text service needs; made by build.py.

    Attributes:
        client: the engine.
        tokenizer: None when the model folder has none: then prompts are ids and outputs have no text.
        chat_template: renders messages; None with the tokenizer.
        defaults: of the model.
        model: what the user named.
        max_queue_size: requests that the engine's line takes.
        seeds: where the seeds of requests without one come from.
    """

    client: EngineClient
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None
    defaults: ModelDefaults
    model: str
    max_queue_size: int
    seeds: random.Random
    _prefix: str = field(default_factory=lambda: secrets.token_hex(4))
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def assembler(
        self, prompt: Prompt, params: SamplingParams | None, *, request_id: str | None = None, priority: int = 0,
        tenant: str = "", timeout: float | None = None, resume: Resume = (),
        cache_salt: str = "",
    ) -> Assembler:  # fmt: skip
        """Make a checked request of a prompt, and what will turn its tokens into text.

        Raises InvalidRequest (or a kind of it) naming the field; nothing is queued.
        """
        text = prompt if isinstance(prompt, str) else None
        ids = self._encode(prompt) if isinstance(prompt, str) else _checked_ids(prompt, self.client.limits.vocab_size)
        return self._assembler(text, ids, params, request_id, priority, tenant, timeout, resume, cache_salt)

    def chat_assembler(
        self, messages: Sequence[Message], params: SamplingParams | None, *, request_id: str | None = None,
        priority: int = 0, tenant: str = "", timeout: float | None = None, resume: Resume = (),
        tools: Sequence[Message] | None = None, prefill: str = "", cache_salt: str = "",
    ) -> Assembler:  # fmt: skip
        """Make a checked request of a conversation and the tools that may be called.

        `prefill` is how the answer begins: it stands at the end of the prompt, and special tokens in it count as such.
        Raises InvalidRequest as `assembler` does.
        """
        if self.tokenizer is None or self.chat_template is None:
            raise InvalidRequest("the model folder has no tokenizer, so it cannot chat", param="messages")
        rendered = self.chat_template.render(messages, tools=tools)
        rendered = replace(rendered, text=rendered.text + prefill)
        self._refuse_hopeless(rendered.text, self.tokenizer)
        ids = tuple(self.tokenizer.encode_chat(rendered))
        return self._assembler(rendered.text, ids, params, request_id, priority, tenant, timeout, resume, cache_salt)

    def _assembler(
        self, text: str | None, ids: tuple[int, ...], params: SamplingParams | None, request_id: str | None,
        priority: int, tenant: str, timeout: float | None, resume: Resume, cache_salt: str,
    ) -> Assembler:  # fmt: skip
        integer("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)
        _check_name("tenant", tenant, 0, MAX_TENANT_CHARS)
        _check_name("cache_salt", cache_salt, 0, MAX_TENANT_CHARS)
        if request_id is None:
            request_id = f"req-{self._prefix}-{next(self._numbers)}"
        _check_name("request_id", request_id, 1, MAX_REQUEST_ID_CHARS)
        if params is not None and not isinstance(params, SamplingParams):
            raise InvalidRequest(f"params must be SamplingParams, got {type(params).__name__}", param="params")
        asked = self._resolved(params or SamplingParams(), len(ids))
        runs_on = asked.ignore_eos and asked.structured is None  # a structure says itself where an end may come
        request = GenerateRequest(
            request_id=request_id, prompt_token_ids=ids, params=_for_the_engine(asked),
            eos_token_ids=() if runs_on else self.defaults.eos_token_ids, priority=priority, tenant=tenant,
            timeout=timeout, resume=_resumed(resume), cache_salt=cache_salt,
        )  # fmt: skip
        validate_request(request, self.client.limits)
        return Assembler(request, text, self.tokenizer, asked)

    def _encode(self, prompt: str) -> tuple[int, ...]:
        if self.tokenizer is None:
            raise InvalidRequest(
                "the model folder has no tokenizer.json, so a prompt must be token ids", param="prompt"
            )
        self._refuse_hopeless(prompt, self.tokenizer)
        return tuple(self.tokenizer.encode(prompt))

    def _refuse_hopeless(self, text: str, tokenizer: Tokenizer) -> None:
        """Raise ContextLengthExceeded for a text of which the beginning alone is much too long.

        A megabyte takes hundreds of them while it becomes tokens. What is cut off can change the last few tokens of the
        beginning, but not half of them (ADR 0018).
        """
        limit = self.client.limits.max_model_len
        glance = GLANCE_CHARS * limit
        if len(text) <= 2 * glance:
            return
        found = len(tokenizer.encode(text[:glance], add_special_tokens=False))
        if found >= 2 * limit:
            raise ContextLengthExceeded(found, None, limit, or_more=True)

    def _resolved(self, params: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """Fill what the request leaves open: length as far as it fits, a seed of our own."""
        room = max(1, self.client.limits.max_output_tokens(prompt_tokens))
        wanted = self.defaults.max_tokens
        seed = params.seed if params.seed is not None else self.seeds.getrandbits(63)
        if self.tokenizer is None:
            for param in ("stop", "bad_words", "structured"):
                if getattr(params, param):
                    raise InvalidRequest(f"{param} needs a tokenizer, which the model folder lacks", param=param)
        if params.bad_words and self.tokenizer is not None:
            words = {tuple(self.tokenizer.encode(before + word.lstrip(" "), add_special_tokens=False))
                     for word in params.bad_words for before in ("", " ")}  # fmt: skip
            params = replace(params, bad_words_ids=(*params.bad_words_ids, *sorted(words - {()})))
        return params.with_defaults(
            self.defaults.sampling, max_tokens=room if wanted is None else min(room, wanted), seed=seed
        )


def _check_name(param: str, value: Any, least: int, most: int) -> None:
    """Refuse what is no string that can be written, or not of this length."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string, got {type(value).__name__}", param=param)
    if not least <= len(value) <= most:
        raise InvalidRequest(f"{param} must have {least} to {most} characters, got {len(value)}", param=param)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidRequest(f"{param} must be valid Unicode, got half of a surrogate pair", param=param)


def _for_the_engine(asked: SamplingParams) -> SamplingParams:
    """Return what the engine has to do so that the assembler can make what was asked for."""
    params = asked
    if params.num_choices > params.n and params.logprobs is None:
        params = replace(params, logprobs=0)  # to know which are the best
    if params.max_tokens == 0:
        params = replace(params, max_tokens=1)  # the prompt is computed; its token is dropped
    return params


def plain(value: Any) -> Any:
    """Turn a numpy array or a tensor into lists and numbers; everything else is returned as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _checked_ids(prompt: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Token ids of a prompt as plain ints, each in the vocabulary."""
    ids = _ids(prompt, "prompt", "a string or ")
    for token in ids:
        if not 0 <= token < vocab_size:
            raise TokenOutOfRange(token, vocab_size)
    return ids


def _resumed(resume: Any) -> tuple[tuple[int, ...], ...]:
    resume = plain(resume)
    if not isinstance(resume, list | tuple):
        wanted = "resume must be a list with a list of token ids for each choice"
        raise InvalidRequest(f"{wanted}, got {type(resume).__name__}", param="resume")
    return tuple(_ids(tokens, "resume") for tokens in resume)


def _ids(given: Any, param: str, besides: str = "") -> tuple[int, ...]:
    """Token ids as plain ints; anything else is refused."""
    given, wanted = plain(given), f"{param} must be {besides}a list of token ids"
    if isinstance(given, str | bytes | Mapping | set | frozenset) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{wanted}, got {type(given).__name__}", param=param)
    tokens = list(given)
    if any(isinstance(token, bool) for token in tokens):
        raise InvalidRequest(f"{wanted}, got a bool in it", param=param)
    try:
        return tuple(operator.index(token) for token in tokens)
    except TypeError as error:
        raise InvalidRequest(f"{wanted}: {error}", param=param) from None
