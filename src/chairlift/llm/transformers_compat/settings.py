"""ManagerSettings: the options of a manager, from transformers' two configurations and from keyword arguments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from chairlift.core.errors import ConfigError, InvalidRequest, UnknownOption
from chairlift.core.numeric_limits import MAX_INT32
from chairlift.core.sampling_params import INT_BOUNDS, MODEL_DEFAULTS, SamplingParams
from chairlift.core.validation import boolean, integer, invalid_param
from chairlift.engine.config import CacheConfig
from chairlift.llm.options import Options
from chairlift.llm.transformers_compat.given_options import (
    ENGINE_NAMES,
    SAMPLING_NAMES,
    GivenOptions,
    effective_options,
    log_once,
    read_fields,
)
from chairlift.llm.transformers_compat.option_names_in_errors import (
    ENGINE_LIMITS,
    MANAGER_OPTIONS,
    REQUEST_FIELDS,
    manager_hint,
    naming_given_options,
    request_hint,
)
from chairlift.llm.transformers_compat.option_table import BATCHING

GENERATION_BLOCK_SIZE = 32
"""Tokens of a block by default where transformers had num_blocks in GenerationConfig."""


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
        max_queue_size: requests that wait for their first token; 0 means no limit.
        seed: seeds the source of seeds for requests without one; None uses the system's randomness.
        given_names: name of an option or a sampling parameter here -> another name by which the user gave it.
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
    given_names: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def is_greedy(self) -> bool:
        """Whether a request without its own parameters takes the likeliest token."""
        return self.sampling.get("temperature") == 0


def resolve_settings(
    generation_config: Any = None, continuous_batching_config: Any = None, knobs: Mapping[str, Any] | None = None, *,
    origin: str = "",
) -> ManagerSettings:  # fmt: skip
    """Return the settings of a manager; keyword arguments win over the second configuration, and that over the first.

    Args:
        generation_config: transformers' GenerationConfig or a mapping with its fields, also those of its older
            versions for batching; None for none.
        continuous_batching_config: transformers' ContinuousBatchingConfig, the class of this name here, or a mapping.
        knobs: any of these fields, and the engine's options.
        origin: where generation_config comes from, for messages, if the user did not pass it.

    Fields without effect here are logged once. Raises UnknownOption for an unknown keyword argument, and ConfigError
    for a field that is refused or has an impossible value.
    """
    generation = read_fields(generation_config, "generation_config")
    if continuous_batching_config is None:
        continuous_batching_config = generation.get("continuous_batching_config")
    batching, own = read_fields(continuous_batching_config, "continuous_batching_config"), dict(knobs or {})
    _check_names(own)
    generation = {name: value for name, value in generation.items() if own.get(name) is None}
    try:
        sources = [  # of the first only the class itself has defaults, and none of them is an option of the engine
            effective_options(generation, is_chosen=True),
            effective_options(batching, is_chosen=isinstance(continuous_batching_config, Mapping)),
            effective_options(own, is_chosen=True),
        ]
        if not any("block_size" in source.values for source in sources):
            _scale_blocks(sources[0].values, GENERATION_BLOCK_SIZE)
            _scale_blocks(sources[1].values, BATCHING["page_size"].default)
        given = GivenOptions()
        for source in sources:
            given.add(source)
        # Greedy without do_sample, as in transformers; but a temperature in the call itself decides.
        if own.get("temperature") is not None and own.get("do_sample") is None:
            given.values["do_sample"] = own["temperature"] != 0
        return _settings(given)
    except ConfigError as error:
        option = error.details.get("option")
        if not origin or option not in generation or option in batching:
            raise
        message = f"{error.message}. It comes from {origin}: pass a generation_config without it"
        raise ConfigError(message, option=option) from error


def request_params(
    settings: ManagerSettings, *, num_prompt_tokens: int = 0, max_new_tokens: Any = None, eos_token_id: Any = None,
    **sampling: Any,
) -> tuple[SamplingParams, tuple[int, ...] | None]:  # fmt: skip
    """Return the sampling parameters of a request, and the token ids that end it (None: those of the model).

    Without max_tokens the parameters let the output be as long as there is room. A temperature of 0, or do_sample
    False, is greedy. Raises InvalidRequest with the field.
    """
    fields, names = dict(settings.sampling), {**ENGINE_LIMITS, **settings.given_names}
    for name, value in sampling.items():
        if name not in REQUEST_FIELDS:
            raise invalid_param(name, f"is no parameter of a request{request_hint(name)}")
        if value is not None:
            own = REQUEST_FIELDS[name]
            fields[own], names[own] = value, name
    _check_allowed_ids(fields)
    if (do_sample := fields.pop("do_sample", None)) is not None:
        if not boolean("do_sample", do_sample):
            fields["temperature"] = 0.0
        elif sampling.get("temperature") is None and settings.is_greedy:
            fields["temperature"] = settings.temperature
    limit = settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    if limit is not None:
        fields["max_tokens"] = integer("max_new_tokens", limit, 1, MAX_INT32)
    elif settings.max_length is not None:
        if num_prompt_tokens >= settings.max_length:
            raise invalid_param(
                "max_length", f"is {settings.max_length}, the prompt has {num_prompt_tokens} tokens: set max_new_tokens"
            )
        fields["max_tokens"] = settings.max_length - num_prompt_tokens
    if settings.return_logprobs:
        fields["logprobs"] = 0
    eos = settings.eos_token_ids if eos_token_id is None else _token_ids(eos_token_id)
    with naming_given_options(names):
        return SamplingParams(**{**MODEL_DEFAULTS, **fields}), eos


def _check_allowed_ids(fields: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an empty list of allowed tokens, after which no token could follow."""
    allowed = fields.get("allowed_token_ids")
    if isinstance(allowed, list | tuple) and not allowed:
        raise invalid_param("allowed_token_ids", "must have at least one token id, got none; None allows every token")


def _settings(given: GivenOptions) -> ManagerSettings:
    values, names = given.values, {own: name for own, name in given.names.items() if own != name}
    sampling = {name: value for name, value in values.items() if name in SAMPLING_NAMES}
    temperature = sampling.get("temperature")
    if not values.get("do_sample"):
        sampling["temperature"] = 0.0
    try:
        _check_allowed_ids(sampling)
        with naming_given_options(names):
            SamplingParams(**{**MODEL_DEFAULTS, **sampling, "temperature": temperature})
        for name, least in (("max_new_tokens", 1), ("max_length", 1), ("num_return_sequences", 1),
                            ("max_queue_size", 0)):  # fmt: skip
            if values.get(name) is not None:
                values[name] = integer(name, values[name], least, MAX_INT32)
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
        seed=values.get("seed"), given_names=names,
    )  # fmt: skip


def _engine_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's options; the manager itself counts the requests that wait."""
    options = {name: values[name] for name in values if name in ENGINE_NAMES}
    if isinstance(options.get("profile"), bool) and options.pop("profile"):
        log_once("profile", "True names no file for the trace of the steps; pass its path")
    if "safety_margin" in options and options.setdefault("batching_policy", "fifo") == "prefill_first":
        log_once("safety_margin", "the scheduler prefill_first has none")
        del options["safety_margin"]
    return options | {"max_queue_size": MAX_INT32}


def _scale_blocks(values: dict[str, Any], block_size: int) -> None:
    """Set num_blocks to the number of our blocks that hold as many tokens as transformers' of this size."""
    if type(values.get("num_blocks")) is int:
        values["num_blocks"] = -(-values["num_blocks"] * block_size // CacheConfig(num_blocks=1).block_size)


def _check_names(knobs: Iterable[str]) -> None:
    for name in knobs:
        if name not in MANAGER_OPTIONS:
            raise UnknownOption(f"unknown option {name!r}{manager_hint(name)}", option=name)


def _token_ids(value: Any) -> tuple[int, ...]:
    """Return token ids that end an output: of one id or several; nulls and negative ones are none."""
    value = value.tolist() if hasattr(value, "tolist") else value
    ids = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    checked = [integer("eos_token_id", token, -MAX_INT32, MAX_INT32) for token in ids if token is not None]
    return tuple(token for token in checked if token >= 0)
