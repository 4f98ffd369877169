"""BaseRequest and common_fields: the fields that chats and completions of the OpenAI API share, parsed and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.numeric_limits import MAX_HTTP_TIMEOUT_SECONDS, MAX_PRIORITY, MIN_HTTP_PRIORITY
from chairlift.core.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGITS_PROCESSORS,
    MAX_TOKENS,
    MODEL_DEFAULTS,
    SamplingParams,
)
from chairlift.core.validation import as_tuple, boolean, integer, invalid_param, number, string, token_ids
from chairlift.protocol.request_fields import CHAT, MAX_FINGERPRINT_CHARS, MAX_SALT_CHARS, Field
from chairlift.protocol.request_schemas import CONTINUOUS_USAGE, INCLUDE_USAGE
from chairlift.server.openai.structured_fields import StructuredField

MAX_RESUMED = MAX_TOKENS
MAX_USER_CHARS = 128

_NONE = Field({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRequest:
    """The fields that both generation routes have.

    Attributes:
        model: the model's name in the request, "" where it has none.
        params: sampling parameters for the engine.
        stream: whether the response is a stream of events.
        include_usage: whether the stream's last event has token counts.
        has_continuous_usage: whether each of its chunks has the counts so far, too.
        return_token_ids: whether chunks carry token ids and output positions.
        resume: for each choice the token ids that were delivered before.
        resume_fingerprint: fingerprint of the server that delivered them, "" where the request names none.
        priority: a smaller one is scheduled first.
        timeout: seconds; None for no limit of the request's own.
        cache_salt: requests share cached prefixes only under the same salt.
        structured_field: the body's field that constrains the output, "" where none does.
        user: the end user's name, for the log.
        ignored: names of fields that have no effect.
        prediction: the text that the output is expected to be; None without one.
    """

    model: str
    params: SamplingParams
    stream: bool
    include_usage: bool
    has_continuous_usage: bool
    return_token_ids: bool
    resume: tuple[tuple[int, ...], ...]
    resume_fingerprint: str
    priority: int
    timeout: float | None
    cache_salt: str
    structured_field: str
    user: str
    ignored: tuple[str, ...]
    prediction: str | None = None


def common_fields(
    fields: Mapping[str, Any], ignored: tuple[str, ...], structured: StructuredField, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of BaseRequest; `more` are sampling parameters that the route has parsed."""
    sampling = {
        name: value for name, value in fields.items() if name == "max_tokens" or (CHAT.get(name) or _NONE).sampling
    }
    if "logit_bias" in sampling:
        sampling["logit_bias"] = _logit_bias(sampling["logit_bias"])
    if "logits_processors" in sampling:
        _check_processors(sampling["logits_processors"])
    if structured.output is not None:
        if more.get("structured") is not None:
            raise invalid_param("tool_choice", "cannot force a call, because the request also has a structured output")
        sampling["structured"] = structured.output
    stream, options = boolean("stream", fields.get("stream", False)), fields.get("stream_options", {})
    include_usage = _stream_option(options, INCLUDE_USAGE) and stream
    has_continuous_usage = _stream_option(options, CONTINUOUS_USAGE) and include_usage
    return {
        **base_fields(fields),
        "params": SamplingParams(**{**MODEL_DEFAULTS, **sampling, **more}),
        "stream": stream,
        "include_usage": include_usage,
        "has_continuous_usage": has_continuous_usage,
        "return_token_ids": boolean("return_token_ids", fields.get("return_token_ids", False)),
        "resume": _resume(fields.get("resume")),
        "resume_fingerprint": string(
            "resume_fingerprint", fields.get("resume_fingerprint", ""), MAX_FINGERPRINT_CHARS, least=0
        ),
        "structured_field": "tools" if more.get("structured") is not None else structured.name,
        "ignored": (*ignored, *structured.ignored),
    }


def base_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of BaseRequest that do not concern the output. Raises InvalidRequest."""
    timeout, salt = fields.get("timeout"), fields.get("cache_salt")
    if timeout is not None:
        timeout = number("timeout", timeout, 0, MAX_HTTP_TIMEOUT_SECONDS, open_low=True)
    return {
        "model": fields.get("model", ""),
        "priority": integer("priority", fields.get("priority", 0), MIN_HTTP_PRIORITY, MAX_PRIORITY),
        "timeout": timeout,
        "cache_salt": "" if salt is None else string("cache_salt", salt, MAX_SALT_CHARS),
        "user": _user(fields.get("user", "")),
    }


def _user(value: Any) -> str:
    if not isinstance(value, str):
        raise invalid_param("user", f"must be a string, got {type(value).__name__}")
    return value[:MAX_USER_CHARS]


def _stream_option(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name)
    return value is not None and boolean(f"stream_options.{name}", value)


def _logit_bias(value: Any) -> dict[int, Any]:
    """Return logit_bias with integer keys; JSON has only string keys."""
    if not isinstance(value, dict):
        raise invalid_param("logit_bias", f"must be an object, got {type(value).__name__}")
    if len(value) > MAX_LOGIT_BIAS:
        raise invalid_param("logit_bias", f"has {len(value)} entries, the limit is {MAX_LOGIT_BIAS}")
    for key in value:
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise invalid_param("logit_bias", f"must have token ids as keys, got {key[:40]!r}")
    return {int(key): bias for key, bias in value.items()}


def _check_processors(value: Any) -> None:
    """Reject arguments in text: SamplingParams would take them for its own serialized form, unchecked."""
    if isinstance(value, dict):
        arguments = list(value.values())
    else:
        entries = as_tuple("logits_processors", value, MAX_LOGITS_PROCESSORS, str)
        arguments = [entry[1] for entry in entries if isinstance(entry, list) and len(entry) == 2]
    if not all(isinstance(each, dict | None) for each in arguments):
        raise invalid_param("logits_processors", "must map each name to an object with its arguments")


def _resume(value: Any) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tokens, list) for tokens in value):
        raise invalid_param("resume", "must be a list of lists of token ids, one for each choice")
    return tuple(token_ids("resume", tokens, MAX_RESUMED, MAX_TOKENS) for tokens in value)
