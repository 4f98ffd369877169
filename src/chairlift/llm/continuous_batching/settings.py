"""ManagerSettings: the options of a manager, from transformers' two configurations and from keyword arguments."""

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from chairlift.core.errors import ConfigError, InvalidRequest, UnknownOption
from chairlift.core.sampling import INT_BOUNDS, MODEL_DEFAULTS, SamplingParams
from chairlift.core.validation import boolean, integer, invalid_param
from chairlift.engine.config import CacheConfig
from chairlift.llm.continuous_batching.config_fields import (
    BATCHING,
    ENGINE_OPTIONS,
    GENERATION,
    OTHER_SAMPLING,
    Use,
)
from chairlift.llm.options import Options

log = logging.getLogger("ContinuousBatchingLogger")

SCHEDULERS = ("fifo", "prefill_first")
MAX_NEW_TOKENS = 2**31 - 1
GENERATION_BLOCK_SIZE = 32
"""Tokens of a block by default where transformers had num_blocks in GenerationConfig."""

_logged: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings:
    """The options of a manager.

    Attributes:
        options: those of the engine.
        sampling: fields of SamplingParams for requests without their own.
        eos_token_ids: token ids that end an output; None for those of the model.
        max_new_tokens: output tokens of a request; None for as many as the context and the cache have room for.
        max_length: tokens of prompt and output, of a request without max_new_tokens; None for no limit of its own.
        temperature: of a greedy manager's request that sets do_sample; None for 1.
        num_return_sequences: outputs of each request.
        return_logprobs: whether outputs have logprobs.
        max_queue_size: requests that wait for their first token; 0 is no limit.
        seed: seeds the source of seeds for requests without one; None uses the system's randomness.
    """

    options: Options = field(default_factory=Options)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    temperature: float | None = None
    num_return_sequences: int = 1
    return_logprobs: bool = False
    max_queue_size: int = 0
    seed: int | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether a request without its own parameters takes the likeliest token."""
        return self.sampling.get("temperature") == 0


def resolve_settings(
    generation_config: Any = None, continuous_batching_config: Any = None, knobs: Mapping[str, Any] | None = None
) -> ManagerSettings:
    """Return the settings of a manager; keyword arguments win over the second configuration, and that over the first.

    Args:
        generation_config: transformers' GenerationConfig or a mapping with its fields, also those of its older
            versions for batching; None for none.
        continuous_batching_config: transformers' ContinuousBatchingConfig, the class of this name here, or a mapping.
        knobs: any of these fields, and the engine's options.

    Fields without effect here are logged once. Raises UnknownOption for an unknown keyword argument, and ConfigError
    for a field that is refused or has an impossible value.
    """
    generation = _fields_of(generation_config, "generation_config")
    if continuous_batching_config is None:
        continuous_batching_config = generation.get("continuous_batching_config")
    batching, own = _fields_of(continuous_batching_config, "continuous_batching_config"), dict(knobs or {})
    _check_names(own)
    sources = [  # of the first only the class itself has defaults, and none of them is an option of the engine
        _effective(generation, is_chosen=True),
        _effective(batching, is_chosen=isinstance(continuous_batching_config, Mapping)),
        _effective(own, is_chosen=True),
    ]
    if not any("block_size" in source for source in sources):
        _scale_blocks(sources[0], GENERATION_BLOCK_SIZE)
        _scale_blocks(sources[1], BATCHING["page_size"].default)
    values: dict[str, Any] = {name: value for source in sources for name, value in source.items()}
    # Greedy without do_sample, as in transformers; but a temperature in the call itself decides.
    if own.get("temperature") is not None and own.get("do_sample") is None:
        values["do_sample"] = own["temperature"] != 0
    return _settings(values)


def request_params(
    settings: ManagerSettings, *, num_prompt_tokens: int = 0, max_new_tokens: Any = None, eos_token_id: Any = None,
    **sampling: Any,
) -> tuple[SamplingParams, tuple[int, ...] | None]:  # fmt: skip
    """Return the sampling parameters of a request, and the token ids that end it (None: those of the model).

    Without max_tokens the parameters let the output be as long as there is room. A temperature of 0, or do_sample
    False, is greedy. Raises InvalidRequest with the field.
    """
    fields = dict(settings.sampling)
    for name, value in sampling.items():
        if name not in _REQUEST_FIELDS:
            raise invalid_param(name, f"is no parameter of a request{_reason_or_hint(name)}")
        if value is not None:
            fields[_REQUEST_FIELDS[name]] = value
    if (do_sample := fields.pop("do_sample", None)) is not None:
        if not boolean("do_sample", do_sample):
            fields["temperature"] = 0.0
        elif sampling.get("temperature") is None and settings.is_greedy:
            fields["temperature"] = settings.temperature
    limit = settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    if limit is not None:
        fields["max_tokens"] = integer("max_new_tokens", limit, 1, MAX_NEW_TOKENS)
    elif settings.max_length is not None:
        if num_prompt_tokens >= settings.max_length:
            raise invalid_param(
                "max_length", f"is {settings.max_length}, the prompt has {num_prompt_tokens} tokens: set max_new_tokens"
            )
        fields["max_tokens"] = settings.max_length - num_prompt_tokens
    if settings.return_logprobs:
        fields["logprobs"] = 0
    eos = settings.eos_token_ids if eos_token_id is None else _token_ids(eos_token_id)
    return SamplingParams(**{**MODEL_DEFAULTS, **fields}), eos


_REQUEST_FIELDS: Mapping[str, str] = {
    **{name: spec.name or name for name, spec in GENERATION.items() if spec.use is Use.SAMPLING},
    **{name: name for name in (*OTHER_SAMPLING, "do_sample")},
}
"""Keyword argument of add_request -> field of SamplingParams."""


def _settings(values: dict[str, Any]) -> ManagerSettings:
    sampling = {name: value for name, value in values.items() if name in _SAMPLING_NAMES}
    temperature = sampling.get("temperature")
    if not values.get("do_sample"):
        sampling["temperature"] = 0.0
    try:
        SamplingParams(**{**MODEL_DEFAULTS, **sampling, "temperature": temperature})
        for name, least in (("max_new_tokens", 1), ("max_length", 1), ("num_return_sequences", 1),
                            ("max_queue_size", 0)):  # fmt: skip
            if values.get(name) is not None:
                values[name] = integer(name, values[name], least, MAX_NEW_TOKENS)
        if values.get("seed") is not None:
            values["seed"] = integer("seed", values["seed"], *INT_BOUNDS["seed"])
        for name in ("do_sample", "return_logprobs"):
            boolean(name, values.get(name, False))
        eos = None if values.get("eos_token_id") is None else _token_ids(values["eos_token_id"])
    except InvalidRequest as error:
        raise ConfigError(error.message, option=error.details.get("param")) from None
    return ManagerSettings(
        options=cast("Options", _engine_options(values)), sampling=sampling, eos_token_ids=eos,
        max_new_tokens=values.get("max_new_tokens"), max_length=values.get("max_length"), temperature=temperature,
        num_return_sequences=values.get("num_return_sequences") or 1,
        return_logprobs=values.get("return_logprobs", False), max_queue_size=values.get("max_queue_size") or 0,
        seed=values.get("seed"),
    )  # fmt: skip


def _engine_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's options; the manager itself counts the requests that wait."""
    options = {name: values[name] for name in values if name in _ENGINE_NAMES}
    if isinstance(options.get("profile"), bool) and options.pop("profile"):
        _log_once("profile", "True names no file for the trace of the steps; pass its path")
    if "safety_margin" in options and options.setdefault("batching_policy", "fifo") == "prefill_first":
        _log_once("safety_margin", "the scheduler prefill_first has none")
        del options["safety_margin"]
    return options | {"max_queue_size": MAX_NEW_TOKENS}


def _scale_blocks(values: dict[str, Any], block_size: int) -> None:
    """Set num_blocks to the number of our blocks that hold as many tokens as transformers' of this size."""
    if type(values.get("num_blocks")) is int:
        values["num_blocks"] = -(-values["num_blocks"] * block_size // CacheConfig(num_blocks=1).block_size)


_ENGINE_NAMES = {
    *(spec.name or name for name, spec in BATCHING.items() if spec.use is Use.ENGINE), *ENGINE_OPTIONS
}  # fmt: skip
_SAMPLING_NAMES = {
    *(spec.name or name for name, spec in GENERATION.items() if spec.use is Use.SAMPLING), *OTHER_SAMPLING
} - {"seed"}  # fmt: skip


def _fields_of(config: Any, name: str) -> dict[str, Any]:
    """Return the fields of a configuration that are not None."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        values = dict(config)
    elif hasattr(config, "__dict__"):
        values = dict(vars(config))
    elif hasattr(config, "__slots__"):
        values = {each: getattr(config, each) for each in config.__slots__}
    else:
        raise ConfigError(f"{name} must be a configuration or a mapping, got {type(config).__name__}", option=name)
    return {each: value for each, value in values.items() if value is not None}


def _effective(fields: Mapping[str, Any], *, is_chosen: bool) -> dict[str, Any]:
    """Return the fields with an effect under their names here; log or refuse the others.

    With `is_chosen` the user wrote each field, so that a value that is transformers' default counts, too.
    """
    values: dict[str, Any] = {}
    for name, value in fields.items():
        spec = BATCHING.get(name) or GENERATION.get(name)
        if spec is None:
            if name in _ENGINE_NAMES or name in _SAMPLING_NAMES:
                values[name] = value
            elif not name.startswith("_"):
                _log_once(name, f"it is not known here{_nearest(name, (*BATCHING, *GENERATION))}")
            continue
        if value is None or spec.use is Use.SILENT:
            continue
        if _is_same(value, spec.default) and not (is_chosen and spec.use is Use.ENGINE):
            continue
        if any(_is_same(value, each) for each in spec.neutral):
            continue
        if spec.use is Use.REFUSED:
            raise ConfigError(f"{name}={_shown(value)} is not supported: {spec.reason}", option=name)
        if spec.use is Use.NONE:
            _log_once(name, spec.reason)
        else:
            _check_scheduler(name, value)
            values[spec.name or name] = value
    return values


def _check_scheduler(name: str, value: Any) -> None:
    if name in ("scheduler", "scheduler_type") and value not in SCHEDULERS:
        raise ConfigError(f"{name} must be {' or '.join(map(repr, SCHEDULERS))}, got {value!r}", option=name)


def _shown(value: Any) -> str:
    """Return a value for a message, cut."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _is_same(value: Any, other: Any) -> bool:
    return type(value) in (int, float, bool, str, list) and other is not None and bool(value == other)


def _log_once(name: str, reason: str) -> None:
    if name not in _logged:
        _logged.add(name)
        log.warning("%s has no effect: %s", name, reason)


def _check_names(knobs: Iterable[str]) -> None:
    known = (*BATCHING, *GENERATION, *ENGINE_OPTIONS, *OTHER_SAMPLING)
    for name in knobs:
        if name not in known:
            raise UnknownOption(f"unknown option {name!r}{_nearest(name, known)}", option=name)


def _reason_or_hint(name: str) -> str:
    """Return why a request has no such parameter, or the nearest one."""
    spec = GENERATION.get(name) or BATCHING.get(name)
    if spec is None:
        return _nearest(name, _REQUEST_FIELDS)
    return f": {spec.reason}" if spec.reason else ": it is one of the manager"


def _nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest name, empty when none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _token_ids(value: Any) -> tuple[int, ...]:
    """Return token ids that end an output: of one id or several; negative ones are none, as in transformers."""
    value = value.tolist() if hasattr(value, "tolist") else value
    ids = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    checked = [integer("eos_token_id", token, -MAX_NEW_TOKENS, MAX_NEW_TOKENS) for token in ids]
    return tuple(token for token in checked if token >= 0)
