"""SamplingParams: what one request asks of the sampler; frozen, complete, checked when it is made.

A field that is None takes the model's own default (generation_config.json), then the neutral value of
`NEUTRAL`; `resolved()` does that, and the engine sees resolved parameters only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, NoReturn

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

_OPTIONAL = frozenset(NEUTRAL) | {"max_tokens", "seed", "logprobs"}
_NUMBERS: Mapping[str, tuple[float, float, bool]] = {  # lowest, highest, whether the lowest itself is refused
    "temperature": (0, 2, False), "top_p": (0, 1, True), "min_p": (0, 1, False), "repetition_penalty": (0, 10, True),
    "presence_penalty": (-2, 2, False), "frequency_penalty": (-2, 2, False),
}  # fmt: skip
_WHOLES: Mapping[str, tuple[int, int]] = {
    "top_k": (-1, MAX_TOKENS), "max_tokens": (1, MAX_TOKENS), "min_tokens": (0, MAX_TOKENS),
    "seed": (-(2**63), 2**63 - 1), "logprobs": (0, MAX_LOGPROBS),
}  # fmt: skip
_FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")


def refuse(param: str, said: str) -> InvalidRequest:
    """Make the error for one field: its name, the value, the bound."""
    return InvalidRequest(f"{param} {said}", param=param)


def shown(value: Any) -> str:
    """Write a value for a sentence; what would fill a page is a huge number."""
    return "a huge number" if isinstance(value, int) and abs(value) >= 10**20 else str(value)


def number(param: str, value: Any, low: float, high: float, *, open_low: bool = False) -> float:
    """Return a real number (numpy's too) as a float; refuse what is not finite and in [low, high] (or (low, high])."""
    if isinstance(value, bool) or not issubclass(type(value), Real):
        raise refuse(param, f"must be a number, got {type(value).__name__}")
    if not low <= value <= high or (open_low and value == low):
        bound = f"greater than {low:g} and at most {high:g}" if open_low else f"between {low:g} and {high:g}"
        raise refuse(param, f"must be {bound}, got {shown(value)}")
    return float(value)


def whole(param: str, value: Any, low: int, high: int) -> int:
    """Return an integer (numpy's too) as an int; refuse what is not in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise refuse(param, f"must be an integer, got {type(value).__name__}")
    plain = int(value)
    if not low <= plain <= high:
        raise refuse(param, f"must be between {low} and {high}, got {shown(plain)}")
    return plain


def _listed(param: str, value: Any, limit: int, single: type) -> tuple[Any, ...]:
    """Return the entries of a list or tuple; one bare entry is a list of one, None is an empty list."""
    if value is None:
        return ()
    if isinstance(value, single):
        return (value,)
    if not isinstance(value, list | tuple):
        raise refuse(param, f"must be a list, got {type(value).__name__}")
    if len(value) > limit:
        raise refuse(param, f"has {len(value)} entries, the limit is {limit}")
    return tuple(value)


def _stop_string(text: Any) -> str:
    if not isinstance(text, str):
        raise refuse("stop", f"must hold strings, got {type(text).__name__}")
    if not 0 < len(text) <= MAX_STOP_STRING_CHARS:
        raise refuse("stop", f"must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters, got {len(text)}")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise refuse("stop", "must hold valid Unicode, got half of a surrogate pair")
    return str.__str__(text)


class LogitBias(dict[int, float]):
    """Token id -> bias, that nobody can change: parameters are shared between requests. Still a dict, for codecs."""

    def _never(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("logit_bias cannot change; make new SamplingParams")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _never

    def __reduce__(self) -> tuple[Any, ...]:
        return LogitBias, (dict(self),)

    @classmethod
    def of(cls, value: Any) -> "LogitBias":
        """Check and take over a mapping. Raises InvalidRequest."""
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise refuse("logit_bias", f"must map token ids to numbers, got {type(value).__name__}")
        if len(value) > MAX_LOGIT_BIAS:
            raise refuse("logit_bias", f"has {len(value)} entries, the limit is {MAX_LOGIT_BIAS}")
        return cls(
            (whole("logit_bias", token, 0, MAX_TOKENS), number("logit_bias", bias, -100, 100))
            for token, bias in value.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Order of effects (as in transformers): repetition, presence and frequency penalties, logit_bias, min_tokens; then
    temperature, top_k, top_p, min_p; then the draw. Logprobs are those of the raw logits, before all of this.

    Numbers may be numpy's and lists may be lists or tuples; what is kept is plain (int, float, str, tuple, LogitBias),
    so that equal parameters are equal, hash, and cross a process border.

    Attributes:
        temperature: 0 is greedy; at most 2. Below 1e-5 it counts as greedy.
        top_k: how many of the likeliest tokens stay; 0 or -1 keeps all.
        top_p: smallest set of likeliest tokens whose probability reaches this stays, (0, 1].
        min_p: tokens less likely than this share of the likeliest are dropped, [0, 1].
        repetition_penalty: divides (multiplies, when negative) the logits of tokens seen in prompt or output, (0, 10].
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
    logit_bias: Mapping[int, float] = field(default_factory=LogitBias, hash=False)
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
        put = object.__setattr__
        for name, (low, high, open_low) in _NUMBERS.items():
            if (value := getattr(self, name)) is not None or name not in _OPTIONAL:
                put(self, name, number(name, value, low, high, open_low=open_low))
        for name, (least, most) in _WHOLES.items():
            if (value := getattr(self, name)) is not None or name not in _OPTIONAL:
                put(self, name, whole(name, value, least, most))
        for name in _FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise refuse(name, f"must be true or false, got {type(value).__name__}")
        if self.top_k == -1:
            put(self, "top_k", 0)
        put(self, "stop", tuple(_stop_string(text) for text in _listed("stop", self.stop, MAX_STOP_STRINGS, str)))
        ids = _listed("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS, Integral)
        put(self, "stop_token_ids", tuple(whole("stop_token_ids", token, 0, MAX_TOKENS) for token in ids))
        put(self, "logit_bias", LogitBias.of(self.logit_bias))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refuse("min_tokens", f"is {self.min_tokens}, more than max_tokens {self.max_tokens}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw."""
        return self.temperature is not None and self.temperature < 1e-5

    def resolved(self, defaults: Mapping[str, Any], *, max_tokens: int, seed: int) -> "SamplingParams":
        """Fill every None: first from the model's defaults, then from NEUTRAL; length and seed from the caller.

        A default that is None counts as absent. Raises InvalidRequest when a default is impossible, or when min_tokens
        is more than the max_tokens that is filled in.
        """
        filled: dict[str, Any] = {}
        for name, neutral in NEUTRAL.items():
            if getattr(self, name) is None:
                default = defaults.get(name)
                filled[name] = neutral if default is None else default
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
