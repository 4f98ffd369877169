"""read_options: the sampling options of a request of Ollama's API, as fields of the OpenAI API."""

from collections.abc import Mapping
from typing import Any

from chairlift.core.sampling_params import FLOAT_BOUNDS, INT_BOUNDS, MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, MAX_TOKENS
from chairlift.core.validation import integer, invalid_param, number, strings
from chairlift.protocol.field_check import as_integer, format_short
from chairlift.protocol.request_fields import CHAT
from chairlift.protocol.request_schemas import Schema
from chairlift.protocol.translation.base import Json

NUM_PREDICT = "num_predict"
MIN_NUM_PREDICT = -2
"""-1 is without a limit and -2 up to the end of the context; here both, and 0, are as many tokens as fit."""

RANDOM_SEED = -1
"""The seed with which each request gets another one."""

SAMPLING_OPTIONS: Mapping[str, str] = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "typical_p": "typical_p",
    "seed": "seed", "stop": "stop", "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}  # fmt: skip
"""Option of Ollama's -> field of the OpenAI API."""

OPTION_NAMES: Mapping[str, str] = {
    **{inner: f"options.{name}" for name, inner in SAMPLING_OPTIONS.items()},
    "max_tokens": f"options.{NUM_PREDICT}", "max_completion_tokens": f"options.{NUM_PREDICT}",
}  # fmt: skip
"""Field of the OpenAI API -> what it is called in a request of Ollama's."""

OPTIONS: Schema = {
    "type": "object",
    "properties": {
        **{name: {"anyOf": [CHAT[inner].schema, {"type": "null"}]} for name, inner in SAMPLING_OPTIONS.items()},
        NUM_PREDICT: {"type": ["integer", "null"], "minimum": MIN_NUM_PREDICT, "maximum": MAX_TOKENS},
    },
    "examples": [{"temperature": 0, "num_predict": 32}],
}  # fmt: skip
"""Schema of `options`; others than these are ignored."""


def read_options(options: Any, ignored: list[str]) -> Json:
    """Return the options as fields of the OpenAI API; names of those without effect go to `ignored`.

    Raises InvalidRequest that names the option.
    """
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise invalid_param("options", f"must be an object, got {format_short(options)}")
    fields: Json = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == NUM_PREDICT:
            limit = integer(f"options.{name}", as_integer(value), MIN_NUM_PREDICT, MAX_TOKENS)
            fields |= {"max_tokens": limit} if limit > 0 else {}
        elif name in SAMPLING_OPTIONS:
            fields[SAMPLING_OPTIONS[name]] = _checked(f"options.{name}", SAMPLING_OPTIONS[name], value)
        else:
            ignored.append(f"options.{name}")
    if fields.get("seed") == RANDOM_SEED:
        del fields["seed"]
    return fields


def _checked(name: str, inner: str, value: Any) -> Any:
    if inner in FLOAT_BOUNDS:
        low, high, is_open = FLOAT_BOUNDS[inner]
        return number(name, value, low, high, open_low=is_open)
    if inner in INT_BOUNDS:
        return integer(name, as_integer(value), *INT_BOUNDS[inner])
    return list(strings(name, value, MAX_STOP_STRINGS, MAX_STOP_STRING_CHARS))
