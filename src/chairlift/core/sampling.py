"""SamplingParams: what one request asks of the sampler; frozen, complete, checked when it is made.

A field that is None takes the model's own default (generation_config.json), then the neutral value of
`NEUTRAL`; `resolved()` does that, and the engine sees resolved parameters only.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from chairlift.core.errors import InvalidRequest, TokenOutOfRange

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_TOKENS = 2**31 - 1

NEUTRAL: Mapping[str, float | int] = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip


def refuse(param: str, said: str) -> InvalidRequest:
    """Make the error for one field: its name, the value, the bound."""
    return InvalidRequest(f"{param} {said}", param=param)


def number(param: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuse what is not a finite number in [low, high] (or (low, high])."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(param, f"must be a number, got {type(value).__name__}")
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        bound = f"greater than {low:g} and at most {high:g}" if open_low else f"between {low:g} and {high:g}"
        raise refuse(param, f"must be {bound}, got {value!r}")


def whole(param: str, value: Any, low: int, high: int) -> None:
    """Refuse what is not an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(param, f"must be an integer, got {type(value).__name__}")
    if not low <= value <= high:
        raise refuse(param, f"must be between {low} and {high}, got {value if abs(value) < 10**20 else 'a huge number'}")


def _tuple(param: str, value: Any, limit: int, kind: type) -> tuple[Any, ...]:
    if isinstance(value, kind):
        value = (value,)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise refuse(param, f"must be a list of {kind.__name__}, got {type(value).__name__}")
    items = tuple(value)
    if len(items) > limit:
        raise refuse(param, f"has {len(items)} entries, the limit is {limit}")
    for item in items:
        if isinstance(item, bool) or not isinstance(item, kind):
            raise refuse(param, f"must hold {kind.__name__}, got {type(item).__name__}")
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Order of effects (as in transformers): repetition, presence and frequency penalties, logit_bias, min_tokens; then
    temperature, top_k, top_p, min_p; then the draw. Logprobs are those of the raw logits, before all of this.

    Attributes:
        temperature: 0 is greedy; at most 2. Below 1e-5 it counts as greedy.
        top_k: how many of the likeliest tokens stay; 0 or -1 keeps all.
        top_p: smallest set of likeliest tokens whose probability reaches this stays, (0, 1].
        min_p: tokens less likely than this share of the likeliest are dropped, [0, 1].
        repetition_penalty: divides (or multiplies, when negative) the logits of tokens seen in prompt or output, (0, 10].
        presence_penalty: subtracted from logits of tokens seen in the output, [-2, 2].
        frequency_penalty: subtracted once for each time a token was seen in the output, [-2, 2].
        logit_bias: token id -> value added to its logit, [-100, 100]; -100 bans the token.
        max_tokens: how many tokens at most; None is as many as fit.
        min_tokens: end of sequence and stop tokens cannot be drawn before so many.
        stop: strings that end the output; they are not part of the text unless include_stop_str_in_output.
        stop_token_ids: token ids that end the output, besides the model's own.
        ignore_eos: the model's own end-of-sequence tokens do not end the output.
        seed: any int64; None draws one at submission, which is reported.
        logprobs: None for none; k for the chosen token's and the k likeliest tokens' at each position.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string that ended the output in the text.

    Raises:
        InvalidRequest: a value is impossible; the sentence names the field and its bound.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        self._normalise()
        self._check_numbers()
        for flag in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, flag), bool):
                raise refuse(flag, f"must be true or false, got {type(getattr(self, flag)).__name__}")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_STRING_CHARS:
                raise refuse("stop", f"must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}")
        for token in self.stop_token_ids:
            whole("stop_token_ids", token, 0, MAX_TOKENS)
        for token, bias in self.logit_bias.items():
            whole("logit_bias", token, 0, MAX_TOKENS)
            number("logit_bias", bias, -100, 100)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refuse("min_tokens", f"is {self.min_tokens}, more than max_tokens {self.max_tokens}")

    def _normalise(self) -> None:
        put = object.__setattr__
        put(self, "stop", _tuple("stop", self.stop or (), MAX_STOP_STRINGS, str))
        put(self, "stop_token_ids", _tuple("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, int))
        if not isinstance(self.logit_bias, Mapping):
            raise refuse("logit_bias", f"must map token ids to numbers, got {type(self.logit_bias).__name__}")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise refuse("logit_bias", f"has {len(self.logit_bias)} entries, the limit is {MAX_LOGIT_BIAS}")
        put(self, "logit_bias", dict(self.logit_bias))
        if self.top_k == -1:
            put(self, "top_k", 0)

    def _check_numbers(self) -> None:
        if self.temperature is not None:
            number("temperature", self.temperature, 0, 2)
        if self.top_k is not None:
            whole("top_k", self.top_k, 0, MAX_TOKENS)
        if self.top_p is not None:
            number("top_p", self.top_p, 0, 1, open_low=True)
        if self.min_p is not None:
            number("min_p", self.min_p, 0, 1)
        if self.repetition_penalty is not None:
            number("repetition_penalty", self.repetition_penalty, 0, 10, open_low=True)
        number("presence_penalty", self.presence_penalty, -2, 2)
        number("frequency_penalty", self.frequency_penalty, -2, 2)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        whole("min_tokens", self.min_tokens, 0, MAX_TOKENS)
        if self.seed is not None:
            whole("seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw."""
        return self.temperature is not None and self.temperature < 1e-5

    def resolved(self, defaults: "Mapping[str, Any]", *, max_tokens: int, seed: int) -> "SamplingParams":
        """Fill every None: first from the model's defaults, then from NEUTRAL; length and seed from the caller."""
        filled: dict[str, Any] = {}
        for name, neutral in NEUTRAL.items():
            if getattr(self, name) is None:
                filled[name] = defaults.get(name, neutral)
        filled["max_tokens"] = max_tokens if self.max_tokens is None else self.max_tokens
        filled["seed"] = seed if self.seed is None else self.seed
        return replace(self, **filled)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise TokenOutOfRange when a token id named here does not exist in a vocabulary of this size."""
        for param, ids in (("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias)):
            for token in ids:
                if token >= vocab_size:
                    raise TokenOutOfRange(token, vocab_size, param)


SAMPLING_FIELDS = tuple(spec.name for spec in fields(SamplingParams))
