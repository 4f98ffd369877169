"""SamplingParams: the sampling parameters of one request; frozen, complete, validated at construction.

The defaults are vLLM's. A field of MODEL_DEFAULTS that is None takes the model's own default (generation_config.json),
then the neutral value of `NEUTRAL_VALUES`; `with_defaults()` does that, and the engine receives resolved parameters
only.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

from chairlift.core import validation
from chairlift.core.errors import TokenOutOfRange
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.core.request_output_kind import RequestOutputKind
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.unknown_sampling_param_errors import explain_unknown_names
from chairlift.core.validation import as_tuple, integer, invalid_param, number, strings, token_ids
from chairlift.core.vllm_structured_outputs_params import StructuredOutputsParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_CHARS = 16_384
"""Characters of all stop strings together: each is a state of the automaton that searches for them."""
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 256
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_LOGITS_PROCESSORS = 16
MAX_PROCESSOR_ARGUMENTS = 16_384
"""Characters of JSON."""
MAX_TOKENS = MAX_INT32
DEFAULT_MAX_TOKENS = 16
"""Output tokens of a request that does not say how many."""

NEUTRAL_VALUES: Mapping[str, float | int] = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
}  # fmt: skip

MODEL_DEFAULTS: Mapping[str, Any] = dict.fromkeys((*NEUTRAL_VALUES, "max_tokens"))
"""The parameters that the model decides, as None: `SamplingParams(**MODEL_DEFAULTS | fields)`."""

_OPTIONAL = frozenset(NEUTRAL_VALUES) | {"max_tokens", "seed", "logprobs", "prompt_logprobs", "best_of"}
FLOAT_BOUNDS: Mapping[str, tuple[float, float, bool]] = {  # lowest, highest, whether the lowest itself is rejected
    "temperature": (0, 2, False), "top_p": (0, 1, False), "min_p": (0, 1, False), "typical_p": (0, 1, True),
    "epsilon_cutoff": (0, 1, False), "eta_cutoff": (0, 1, False), "repetition_penalty": (0, 10, True),
    "presence_penalty": (-2, 2, False), "frequency_penalty": (-2, 2, False),
}  # fmt: skip
INT_BOUNDS: Mapping[str, tuple[int, int]] = {
    "top_k": (-1, MAX_TOKENS), "no_repeat_ngram_size": (0, MAX_TOKENS), "max_tokens": (0, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS), "seed": (-(2**63), 2**63 - 1), "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS), "n": (1, MAX_CHOICES), "best_of": (1, MAX_CHOICES),
}  # fmt: skip
_FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "echo", "detokenize")
_IDS: Mapping[str, int] = {"stop_token_ids": MAX_STOP_TOKEN_IDS, "allowed_token_ids": MAX_ALLOWED_TOKEN_IDS}


class LogitBias(dict[int, float]):
    """Immutable mapping of token id to bias, shared between requests; still a dict, for codecs."""

    def _never(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("logit_bias cannot change; make new SamplingParams")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _never

    def __reduce__(self) -> tuple[Any, ...]:
        return LogitBias, (dict(self),)

    @classmethod
    def of(cls, value: Any) -> "LogitBias":
        """Validate and copy a mapping. Raises InvalidRequest."""
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise invalid_param("logit_bias", f"must map token ids to numbers, got {type(value).__name__}")
        if len(value) > MAX_LOGIT_BIAS:
            raise invalid_param("logit_bias", f"has {len(value)} entries, the limit is {MAX_LOGIT_BIAS}")
        return cls(
            (integer("logit_bias", token, 0, MAX_TOKENS), number("logit_bias", bias, -100, 100))
            for token, bias in value.items()
        )


def _bad_words_ids(value: Any) -> tuple[tuple[int, ...], ...]:
    param = "bad_words_ids"
    words = as_tuple(param, value, 2 * MAX_BAD_WORDS, str)
    parsed = tuple(token_ids(param, word, MAX_BAD_WORD_TOKENS, MAX_TOKENS) for word in words)
    if not all(parsed):
        raise invalid_param(param, "must contain lists of at least one token id, got an empty list")
    return parsed


def _processors(value: Any) -> tuple[tuple[str, str], ...]:
    """Return (name, arguments as JSON) pairs.

    Accepts a name, a list of names, (name, arguments) pairs, or a mapping.
    """
    param = "logits_processors"
    entries = list(value.items()) if isinstance(value, Mapping) else as_tuple(param, value, MAX_LOGITS_PROCESSORS, str)
    if len(entries) > MAX_LOGITS_PROCESSORS:
        raise invalid_param(param, f"has {len(entries)} entries, the limit is {MAX_LOGITS_PROCESSORS}")
    parsed = []
    for entry in entries:
        name, arguments = entry if isinstance(entry, tuple | list) and len(entry) == 2 else (entry, None)
        if not isinstance(arguments, str):  # replace() passes arguments that are JSON text already
            arguments = _as_json(param, {} if arguments is None else arguments)
        if len(arguments) > MAX_PROCESSOR_ARGUMENTS or not arguments.startswith("{"):
            raise invalid_param(
                param, f"must have an object of at most {MAX_PROCESSOR_ARGUMENTS} characters of JSON as arguments"
            )
        (name,) = strings(param, (name,), 1, MAX_STOP_STRING_CHARS)
        parsed.append((name, arguments))
    return tuple(parsed)


def _as_json(param: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_param(param, f"must have arguments that JSON can represent: {error}") from None


def _texts(value: Any, *, name: str, limit: int) -> tuple[str, ...]:
    return strings(name, value, limit, MAX_STOP_STRING_CHARS)


def _stop(value: Any) -> tuple[str, ...]:
    stops = _texts(value, name="stop", limit=MAX_STOP_STRINGS)
    if (total := sum(map(len, stops))) > MAX_STOP_CHARS:
        raise invalid_param("stop", f"has {total} characters altogether, the limit is {MAX_STOP_CHARS}")
    return stops


def _output_kind(value: Any) -> RequestOutputKind:
    try:
        return RequestOutputKind(value)
    except ValueError:
        raise invalid_param("output_kind", f"must be a RequestOutputKind, got {value!r:.40}") from None


def _top_k(value: Any) -> int:
    return max(0, integer("top_k", value, *INT_BOUNDS["top_k"]))


def _checks() -> dict[str, Callable[[Any], Any]]:
    """Return, for each field, the function that validates a value or raises InvalidRequest."""
    checks: dict[str, Callable[[Any], Any]] = {
        "logit_bias": LogitBias.of, "bad_words_ids": _bad_words_ids, "logits_processors": _processors
    }  # fmt: skip
    for name, (low, high, open_low) in FLOAT_BOUNDS.items():
        checks[name] = partial(number, name, low=low, high=high, open_low=open_low)
    for name, (least, most) in INT_BOUNDS.items():
        checks[name] = partial(integer, name, low=least, high=most)
    checks |= {name: partial(validation.boolean, name) for name in _FLAGS}
    checks |= {name: partial(token_ids, name, limit=limit, highest=MAX_TOKENS) for name, limit in _IDS.items()}
    bad_words = partial(_texts, name="bad_words", limit=MAX_BAD_WORDS)
    return checks | {"top_k": _top_k, "stop": _stop, "bad_words": bad_words, "output_kind": _output_kind}


@explain_unknown_names
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen.

    Order of effects (as in transformers): repetition, presence and frequency penalties, logit_bias,
    no_repeat_ngram_size, bad words, allowed_token_ids, min_tokens, logits processors, the grammar's token mask; then
    temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff; then sampling. Logprobs are those of the
    raw logits, before all of this.

    Numbers may be numpy's and lists may be lists or tuples; stored values are plain (int, float, str, tuple,
    LogitBias), so that equal parameters are equal, hash, and cross a process boundary.

    None for temperature, top_k, top_p, min_p, typical_p, the cutoffs, repetition_penalty and no_repeat_ngram_size is
    the default of the model's generation_config.json.

    Attributes:
        n: number of choices, each sampled independently, 1..128. Choice 0 is the output of n = 1 with the same seed.
        best_of: number of choices to sample; the n with the highest mean logprob are returned; None is n.
        temperature: 0 is greedy; at most 2. Below 1e-5 it counts as greedy.
        top_k: number of likeliest tokens to keep; 0 or -1 keeps all.
        top_p: keep the smallest set of likeliest tokens whose probability reaches this, [0, 1]; 0 keeps the likeliest.
        min_p: drop tokens less likely than this share of the likeliest, [0, 1].
        typical_p: of the tokens whose surprise is nearest to the entropy, keep the smallest set that reaches this,
            (0, 1] (Meister et al., "Locally Typical Sampling", 2022).
        epsilon_cutoff: drop tokens less likely than this, but never the likeliest, [0, 1] (Hewitt et al.,
            "Truncation Sampling as Language Model Desmoothing", 2022).
        eta_cutoff: the same with a bound that falls with the entropy: min(eta, sqrt(eta) * exp(-entropy)), [0, 1].
        repetition_penalty: divides (multiplies, when negative) the logits of tokens in prompt or output, (0, 10].
        presence_penalty: subtracted from the logits of tokens in the output, [-2, 2].
        frequency_penalty: subtracted once for each occurrence of a token in the output, [-2, 2].
        no_repeat_ngram_size: length of token runs that must not repeat in prompt and output; 0 allows all.
        logit_bias: token id -> value added to its logit, [-100, 100]; -100 bans the token.
        bad_words: words whose tokens, as written and after a space, never follow each other.
        bad_words_ids: the same in token ids; the last id of each is banned after the others.
        allowed_token_ids: only these can be sampled; empty for all.
        max_tokens: largest number of output tokens; None is as many as fit, or as generation_config.json says. 0 only
            with echo or prompt_logprobs.
        min_tokens: number of output tokens before end-of-sequence and stop tokens can be sampled.
        stop: at most 64 strings that end the output, of 16,384 characters together; they are not part of the text
            unless include_stop_str_in_output.
        stop_token_ids: token ids that end the output, in addition to the model's own.
        ignore_eos: the model's own end-of-sequence tokens do not end the output.
        seed: any int64; None picks one at submission, which is reported.
        logprobs: None for none; k for the chosen token's and the k likeliest tokens' at each position.
        prompt_logprobs: the same for the prompt tokens, each conditioned on those before it. The whole prompt is
            computed then, cached or not.
        detokenize: produce text; False gives token ids alone.
        output_kind: what each output of an AsyncLLM stream holds in `outputs`.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string that ended the output in the text.
        echo: the text begins with the prompt's text.
        logits_processors: names registered with the engine (`LLM(logits_processor_factories=...)`), in call order; a
            mapping of names passes arguments to each.
        structured: the grammar of the output; see StructuredOutput. The output ends where no token can follow.
        structured_outputs: the same with vLLM's fields; it becomes `structured`, and None itself.

    Raises:
        InvalidRequest: a value is impossible; the message names the field and its bound.
        TypeError: there is no such parameter; the message names the nearest one.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float | None = 1.0
    top_k: int | None = 0
    top_p: float | None = 1.0
    min_p: float | None = 0.0
    typical_p: float | None = 1.0
    epsilon_cutoff: float | None = 0.0
    eta_cutoff: float | None = 0.0
    repetition_penalty: float | None = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int | None = 0
    logit_bias: Mapping[int, float] = field(default_factory=LogitBias, hash=False)
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    echo: bool = False
    logits_processors: tuple[tuple[str, str], ...] = ()
    structured: StructuredOutput | None = None
    structured_outputs: StructuredOutputsParams | None = None
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self.structured_outputs is not None:
            put(self, "structured", self._converted(self.structured_outputs))
            put(self, "structured_outputs", None)
        for name, default in _DEFAULTS:  # skip defaults: a request's parameters are constructed three times
            if (value := getattr(self, name)) is not default and (value is not None or name not in _OPTIONAL):
                put(self, name, _CHECKS[name](value))
        self._check_together()

    def _converted(self, structured_outputs: Any) -> StructuredOutput:
        """Return vLLM's form of the grammar as a StructuredOutput. Raises InvalidRequest."""
        if not isinstance(structured_outputs, StructuredOutputsParams):
            kind = type(structured_outputs).__name__
            raise invalid_param("structured_outputs", f"must be a StructuredOutputsParams, got {kind}")
        if self.structured is not None:
            raise invalid_param("structured_outputs", "cannot be combined with structured")
        return structured_outputs.to_structured_output()

    def _check_together(self) -> None:
        """Reject values that are valid alone but not together."""
        if self.max_tokens == 0 and not self.is_prompt_logprobs_only:
            raise invalid_param(
                "max_tokens", f"must be between 1 and {MAX_TOKENS}, got 0 without echo or prompt_logprobs"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise invalid_param("min_tokens", f"is {self.min_tokens}, more than max_tokens {self.max_tokens}")
        if self.best_of is not None and self.best_of < self.n:
            raise invalid_param("best_of", f"is {self.best_of}, less than n {self.n}")
        if not self.detokenize and (self.stop or self.echo):
            raise invalid_param("detokenize", f"must be true with {'stop' if self.stop else 'echo'}, which needs text")
        if self.structured is not None and not isinstance(self.structured, StructuredOutput):
            raise invalid_param("structured", f"must be a StructuredOutput, got {type(self.structured).__name__}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is chosen without sampling."""
        return self.temperature is not None and self.temperature < 1e-5

    @property
    def is_prompt_logprobs_only(self) -> bool:
        """Whether the request returns the prompt (echo or its logprobs) and no output tokens."""
        return self.max_tokens == 0 and (self.echo or self.prompt_logprobs is not None)

    @property
    def num_choices(self) -> int:
        """Number of choices to sample."""
        return self.n if self.best_of is None else self.best_of

    def with_defaults(self, defaults: Mapping[str, Any], *, max_tokens: int, seed: int) -> "SamplingParams":
        """Fill every None from the model's defaults, then NEUTRAL_VALUES; length and seed from the caller.

        A default that is None counts as absent. Raises InvalidRequest when a default is impossible, or when min_tokens
        is more than the max_tokens that is filled in.
        """
        filled: dict[str, Any] = {}
        for name, neutral in NEUTRAL_VALUES.items():
            if getattr(self, name) is None:
                default = defaults.get(name)
                filled[name] = neutral if default is None else default
        if filled.get("top_p", self.top_p) == 0:  # no probability is left to share
            filled |= {"top_k": 1, "top_p": 1.0}
        filled["max_tokens"] = max_tokens if self.max_tokens is None else self.max_tokens
        filled["seed"] = seed if self.seed is None else self.seed
        return replace(self, **filled)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise TokenOutOfRange when a token id in these parameters is not below `vocab_size`."""
        named: tuple[tuple[str, Iterable[int]], ...] = (
            ("stop_token_ids", self.stop_token_ids), ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids), ("bad_words_ids", chain.from_iterable(self.bad_words_ids)),
        )  # fmt: skip
        for param, ids in named:
            for token in ids:
                if token >= vocab_size:
                    raise TokenOutOfRange(token, vocab_size, param)


ALL_FIELDS = tuple(spec.name for spec in fields(SamplingParams))
PYTHON_FIELDS = ("detokenize", "output_kind", "structured_outputs")
"""Parameters of the Python interface alone; requests over HTTP and files of prompts do not have them."""

SAMPLING_FIELDS = tuple(name for name in ALL_FIELDS if name not in PYTHON_FIELDS)
_CHECKS = _checks()
_DEFAULTS = tuple((spec.name, spec.default) for spec in fields(SamplingParams) if spec.name in _CHECKS)
