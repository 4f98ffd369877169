"""read_chat_request and others: bodies of Ollama's API as bodies of the OpenAI API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.model_names import LATEST
from chairlift.core.validation import boolean, integer, invalid_param, string
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.ollama.fields import CHAT, GENERATE, JSON_FORMAT, SHOW, THINK_LEVELS
from chairlift.protocol.ollama.messages import MESSAGE_MEMBERS, chat_messages, check_images
from chairlift.protocol.ollama.options import OPTION_NAMES, read_options
from chairlift.protocol.request_fields import MAX_MODEL_CHARS, MAX_TOP_LOGPROBS, Field
from chairlift.protocol.translation.base import FieldNames, Json

LOAD, UNLOAD = "load", "unload"
SCHEMA_FIELD = "response_format.json_schema.schema"

_FIELD_NAMES: Mapping[str, str] = {
    **OPTION_NAMES, SCHEMA_FIELD: "format", "response_format": "format", "reasoning_effort": "think",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaRequest:
    """A request for text.

    Attributes:
        body: body of the OpenAI API.
        ignored: names of fields without effect.
        names: what the fields of `body` are called in the request.
        model: name of the model in the request, "" where it has none.
        load_reason: what a request without a text is: LOAD or UNLOAD; "" for one with a text.
        top_logprobs: number of likeliest tokens to return with each token.
    """

    body: Json
    ignored: tuple[str, ...]
    names: FieldNames
    model: str
    load_reason: str = ""
    top_logprobs: int = 0


def read_chat_request(body: Mapping[str, Any]) -> OllamaRequest:
    """Translate a body of /api/chat to one of chat completions. Raises InvalidRequest."""
    fields, ignored = _split(body, CHAT)
    messages = chat_messages(fields.get("messages"))
    chat = {"messages": messages, **_common(fields, ignored), **_reasoning_effort(fields.get("think"))}
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise invalid_param("tools", f"must be a list, got {format_short(tools)}")
    if tools and not messages:
        raise invalid_param("messages", "must have at least one message, because the request has tools")
    if tools:
        chat["tools"] = [{"type": "function", **tool} if isinstance(tool, dict) else tool for tool in tools]
    return OllamaRequest(
        body=chat, ignored=tuple(ignored), model=fields.get("model", ""),
        names=FieldNames({**_FIELD_NAMES, "prompt": "messages"}, [f"messages[{i}]" for i in range(len(messages))],
                         MESSAGE_MEMBERS),
        load_reason="" if messages else _load_reason(body), top_logprobs=_top_logprobs(fields),
    )  # fmt: skip


def read_generate_request(body: Mapping[str, Any]) -> OllamaRequest:
    """Translate a body of /api/generate to one of chat completions. Raises InvalidRequest."""
    fields, ignored, prompt, system = _generate_fields(body)
    messages = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    chat = {"messages": messages, **_common(fields, ignored), **_reasoning_effort(fields.get("think"))}
    names = FieldNames(
        {**_FIELD_NAMES, "messages": "prompt"}, ["system", "prompt"] if system else ["prompt"], {".content": ""}
    )
    return OllamaRequest(
        body=chat, ignored=tuple(ignored), names=names, model=fields.get("model", ""),
        load_reason="" if prompt else _load_reason(body), top_logprobs=_top_logprobs(fields),
    )  # fmt: skip


def read_raw_request(body: Mapping[str, Any]) -> OllamaRequest:
    """Translate a body of /api/generate with `raw` to one of completions. Raises InvalidRequest."""
    fields, ignored, prompt, system = _generate_fields(body)
    if system:
        raise invalid_param("system", "cannot be combined with raw: write the system message into the prompt")
    if _reasoning_effort(fields.get("think")):
        ignored.append("think")
    completion = {"prompt": prompt, **_common(fields, ignored)}
    top_logprobs = _top_logprobs(fields)
    if completion.pop("logprobs", False):
        completion["logprobs"] = top_logprobs
    completion.pop("top_logprobs", None)
    if "max_tokens" not in completion:
        completion["fill_context"] = True
    return OllamaRequest(
        body=completion, ignored=tuple(ignored), names=FieldNames({**_FIELD_NAMES, "logprobs": "top_logprobs"}),
        model=fields.get("model", ""), load_reason="" if prompt else _load_reason(body), top_logprobs=top_logprobs,
    )  # fmt: skip


def is_raw(body: Mapping[str, Any]) -> bool:
    """Return whether the prompt of a body of /api/generate is not rendered by the chat template."""
    return body.get("raw") is True


def read_show_request(body: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the name of a model, "" for the only one, and the names of ignored fields. Raises InvalidRequest."""
    fields, ignored = split_fields(body, SHOW)
    if fields.get("name", "") != "":
        string("name", fields["name"], MAX_MODEL_CHARS)
    names = [fields[name] for name in ("model", "name") if fields.get(name)]
    if len({name.removesuffix(LATEST) for name in names}) > 1:
        raise invalid_param("name", "must be the same as model, or missing")
    return next(iter(names), ""), ignored


def _split(body: Mapping[str, Any], table: Mapping[str, Field]) -> tuple[dict[str, Any], list[str]]:
    fields, ignored = split_fields(body, table)
    return fields, list(ignored)


def _generate_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], str, str]:
    """Return the fields, the names of ignored ones, the prompt and the system message."""
    fields, ignored = _split(body, GENERATE)
    for name in ("prompt", "system"):
        if not isinstance(fields.get(name, ""), str):
            raise invalid_param(name, f"must be a string, got {format_short(fields[name])}")
    boolean("raw", fields.get("raw", False))
    check_images(fields.get("images"), "images")
    return fields, ignored, fields.get("prompt", ""), fields.get("system", "")


def _common(fields: Mapping[str, Any], ignored: list[str]) -> Json:
    """Return what both routes of the OpenAI API have."""
    inner: Json = {"model": fields.get("model", ""), **read_options(fields.get("options"), ignored)}
    inner |= _response_format(fields.get("format"))
    if boolean("stream", fields.get("stream", True)):
        inner |= {"stream": True, "stream_options": {"include_usage": True}}
    top_logprobs = _top_logprobs(fields)
    if boolean("logprobs", fields.get("logprobs", False)):
        inner |= {"logprobs": True, "top_logprobs": top_logprobs}
    elif top_logprobs:
        raise invalid_param("top_logprobs", "needs logprobs to be true")
    return inner


def _top_logprobs(fields: Mapping[str, Any]) -> int:
    return integer("top_logprobs", fields.get("top_logprobs", 0), 0, MAX_TOP_LOGPROBS)


def _response_format(value: Any) -> Json:
    if value is None or value == "":
        return {}
    if value == JSON_FORMAT:
        return {"response_format": {"type": "json_object"}}
    if not isinstance(value, dict):
        raise invalid_param("format", f"must be json or a JSON Schema, got {format_short(value)}")
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "format", "schema": value}}}


def _reasoning_effort(think: Any) -> Json:
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"reasoning_effort": "medium" if think else "none"}
    if think not in THINK_LEVELS:
        expected = f"true, false, {', '.join(THINK_LEVELS[:-1])} or {THINK_LEVELS[-1]}"
        raise invalid_param("think", f"must be {expected}, got {format_short(think)}")
    return {"reasoning_effort": think}


def _load_reason(body: Mapping[str, Any]) -> str:
    """Return LOAD, or UNLOAD for a model that is to be kept no longer: `keep_alive` is 0, or text like 0s."""
    kept = body.get("keep_alive")
    is_zero = (
        kept.strip("0.hmsuµn ") == "" and "0" in kept if isinstance(kept, str) else kept == 0 and kept is not False
    )
    return UNLOAD if is_zero else LOAD
