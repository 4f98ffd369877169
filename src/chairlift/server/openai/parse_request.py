"""Parse: a body to a request that a bad one cannot be, or an InvalidRequest that names the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.sampling import MAX_LOGIT_BIAS, MAX_LOGITS_PROCESSORS, MAX_TOKENS, SamplingParams
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import as_tuple, boolean, format_value, integer, invalid_param, number, string, token_ids
from chairlift.llm.text_service import Prompt
from chairlift.protocol.request_fields import (
    CHAT,
    COMPLETION,
    MAX_CHAT_LOGPROBS,
    MAX_COMPLETION_LOGPROBS,
    MAX_MESSAGES,
    MAX_MODALITIES,
    MAX_MODEL_CHARS,
    MAX_PROMPTS,
    MAX_SALT_CHARS,
    MAX_STOPS,
    Effect,
    Field,
)
from chairlift.server.openai.tool_choice import ToolChoice, check_messages, read_tools

MAX_RESUMED = MAX_TOKENS
MAX_TIMEOUT_SECONDS = 86_400
MAX_USER_CHARS = 128
MAX_CHOICES_IN_ALL = 128
STRUCTURES = ("regex", "grammar", "choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What both routes have in common.

    Attributes:
        model: as it was named.
        params: of the engine.
        stream: whether the answer comes in events.
        include_usage: whether the last of them has token counts.
        return_token_ids: whether ids and output positions come along.
        resume: for each choice the tokens that were delivered before.
        priority: smaller rides first.
        timeout: seconds, None for no limit of its own.
        cache_salt: who shares cached prefixes with it.
        form: the field that says what the output has to be, "" where none does.
        user: for the log.
        ignored: fields that have no effect.
    """

    model: str
    params: SamplingParams
    stream: bool
    include_usage: bool
    return_token_ids: bool
    resume: tuple[tuple[int, ...], ...]
    priority: int
    timeout: float | None
    cache_salt: str
    form: str
    user: str
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsked(Asked):
    """A request to /v1/chat/completions; see there of messages and tools."""

    messages: list[Any]
    tools: ToolChoice | None
    logprobs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionAsked(Asked):
    """A request to /v1/completions; each prompt has `params.n` choices."""

    prompts: tuple[Prompt, ...]


def read_chat(body: Mapping[str, Any], notation: str | None) -> ChatAsked:
    """Read a body of /v1/chat/completions; `notation` is that in which the model calls tools. Raises InvalidRequest."""
    given, ignored = taken(body, CHAT)
    messages = listed_messages(given["messages"])
    for modality in as_tuple("modalities", given.get("modalities"), MAX_MODALITIES, str):
        if modality != "text":
            raise invalid_param("modalities", f"can only be text here, got {_short(modality)}")
    tools = read_tools(given, notation)
    wants = boolean("logprobs", given.pop("logprobs", False))
    top = given.pop("top_logprobs", None)
    if top is not None:
        top = integer("top_logprobs", top, 0, MAX_CHAT_LOGPROBS)
        if not wants:
            raise invalid_param("top_logprobs", "needs logprobs to be true")
    for name in ("max_tokens", "max_completion_tokens"):  # the second one wins
        if (longest := given.pop(name, None)) is not None:
            given["max_tokens"] = integer(name, longest, 1, MAX_TOKENS)
    more: dict[str, Any] = {"logprobs": (top or 0) if wants else None}
    if tools is not None and tools.structure is not None:
        more["structured"] = tools.structure
    if tools is not None and tools.shows_special:
        more["skip_special_tokens"] = False
    if tools is not None and tools.ignores_strict:
        ignored = (*ignored, "tools.function.strict")
    common = _common(given, ignored, more)
    check_messages(messages)
    return ChatAsked(**common, messages=messages, tools=tools, logprobs=wants)


def read_completion(body: Mapping[str, Any]) -> CompletionAsked:
    """Read a body of /v1/completions. Raises InvalidRequest."""
    given, ignored = taken(body, COMPLETION)
    prompts = _prompts(given["prompt"])
    more: dict[str, Any] = {name: given.pop(name) for name in ("best_of", "echo") if given.get(name) is not None}
    if (scores := given.pop("logprobs", None)) is not None:
        more["logprobs"] = integer("logprobs", scores, 0, MAX_COMPLETION_LOGPROBS)
        if more.get("echo") is True:
            more["prompt_logprobs"] = more["logprobs"]
    common = _common(given, ignored, more)
    params: SamplingParams = common["params"]
    if params.best_of is not None and common["stream"]:
        raise invalid_param("best_of", "cannot go with stream: who is best is known at the end")
    if len(prompts) * params.num_choices > MAX_CHOICES_IN_ALL:
        raise invalid_param(
            "n", f"times the prompts may be {MAX_CHOICES_IN_ALL}, got {len(prompts) * params.num_choices}"
        )
    if len(prompts) > 1 and common["resume"]:
        raise invalid_param("resume", f"goes with one prompt, got {len(prompts)}")
    return CompletionAsked(**common, prompts=prompts)


def taken(body: Mapping[str, Any], table: Mapping[str, Field]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what is used, without nulls, and the names of what is ignored. Raises InvalidRequest."""
    given: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in body.items():
        field = table.get(name)
        if value is None and field is not None:
            continue
        if field is None or field.effect is Effect.IGNORED:
            ignored.append(name)
        elif field.effect is Effect.REFUSED:
            raise invalid_param(name, f"is not supported: {field.help}")
        else:
            given[name] = value
    for name, field in table.items():
        if field.required and name not in given:
            raise invalid_param(name, "is missing")
    if "model" in given:
        string("model", given["model"], MAX_MODEL_CHARS)
    if "stream_options" in given:
        ignored += _ignored_options(given)
    return given, tuple(ignored)


def listed_messages(messages: Any) -> list[Any]:
    """Return messages that are a list of a length that is allowed; what each says is checked elsewhere."""
    if not isinstance(messages, list):
        raise invalid_param("messages", f"must be a list of messages, got {type(messages).__name__}")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise invalid_param("messages", f"must hold 1 to {MAX_MESSAGES} messages, got {len(messages)}")
    return messages


def _ignored_options(given: Mapping[str, Any]) -> list[str]:
    """Return by name what of stream_options has no effect: all of it where there is no stream."""
    options = given["stream_options"]
    if not isinstance(options, dict):
        raise invalid_param("stream_options", f"must be an object, got {type(options).__name__}")
    if given.get("stream") is not True:
        return ["stream_options"]
    return [f"stream_options.{name}" for name in options if name != "include_usage"]


def _common(given: Mapping[str, Any], ignored: tuple[str, ...], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of Asked; `more` are the parameters that each route reads in its own way."""
    sampling = {
        name: value for name, value in given.items() if name == "max_tokens" or (CHAT.get(name) or _NONE).sampling
    }
    if "logit_bias" in sampling:
        sampling["logit_bias"] = _biases(sampling["logit_bias"])
    if "logits_processors" in sampling:
        _check_processors(sampling["logits_processors"])
    if isinstance(stops := sampling.get("stop"), list) and len(stops) > MAX_STOPS:
        raise invalid_param("stop", f"has {len(stops)} entries, the limit is {MAX_STOPS}")
    structure = _structure(given)
    if structure is not None:
        if more.get("structured") is not None:
            raise invalid_param("tool_choice", "cannot force a call where a structure is asked for")
        sampling["structured"] = structure
    stream = boolean("stream", given.get("stream", False))
    timeout = given.get("timeout")
    if timeout is not None:
        timeout = number("timeout", timeout, 0, MAX_TIMEOUT_SECONDS, open_low=True)
    salt = given.get("cache_salt")
    return {
        "model": given["model"],
        "params": SamplingParams(**{**sampling, **more}),
        "stream": stream,
        "include_usage": _include_usage(given.get("stream_options", {})) and stream,
        "return_token_ids": boolean("return_token_ids", given.get("return_token_ids", False)),
        "resume": _resume(given.get("resume")),
        "priority": integer("priority", given.get("priority", 0), 0, 2**31 - 1),
        "timeout": timeout,
        "cache_salt": "" if salt is None else string("cache_salt", salt, MAX_SALT_CHARS),
        "form": _form(given, more),
        "user": _user(given.get("user", "")),
        "ignored": ignored,
    }


_NONE = Field({})


def _short(value: Any) -> str:
    """Write a value for a sentence; of what may be nested deep only its type."""
    if isinstance(value, str):
        return repr(value[:40])
    return format_value(value)[:40] if isinstance(value, int | float) else type(value).__name__


def _user(value: Any) -> str:
    if not isinstance(value, str):
        raise invalid_param("user", f"must be a string, got {type(value).__name__}")
    return value[:MAX_USER_CHARS]


def _include_usage(options: Mapping[str, Any]) -> bool:
    wants = options.get("include_usage")
    return wants is not None and boolean("stream_options.include_usage", wants)


def _biases(value: Any) -> dict[int, Any]:
    """Return a bias with its keys as integers; JSON has only strings for them."""
    if not isinstance(value, dict):
        raise invalid_param("logit_bias", f"must be an object, got {type(value).__name__}")
    if len(value) > MAX_LOGIT_BIAS:
        raise invalid_param("logit_bias", f"has {len(value)} entries, the limit is {MAX_LOGIT_BIAS}")
    for key in value:
        if not key.isascii() or not key.isdigit() or len(key) > 10:
            raise invalid_param("logit_bias", f"must have token ids for keys, got {key[:40]!r}")
    return {int(key): bias for key, bias in value.items()}


def _check_processors(value: Any) -> None:
    """Refuse arguments in text: SamplingParams takes that for what it wrote itself, and does not look into it."""
    if isinstance(value, dict):
        arguments = list(value.values())
    else:
        entries = as_tuple("logits_processors", value, MAX_LOGITS_PROCESSORS, str)
        arguments = [entry[1] for entry in entries if isinstance(entry, list) and len(entry) == 2]
    if not all(isinstance(each, dict | None) for each in arguments):
        raise invalid_param("logits_processors", "must have an object for the arguments of each")


def _resume(value: Any) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tokens, list) for tokens in value):
        raise invalid_param("resume", "must be a list of lists of token ids, one for each choice")
    return tuple(token_ids("resume", tokens, MAX_RESUMED, MAX_TOKENS) for tokens in value)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Return the prompts of one, or of a list of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise invalid_param("prompt", "must be text, token ids, or a list of either that is not empty")
    if all(type(token) is int for token in value):
        return (_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise invalid_param("prompt", f"has {len(value)} entries, the limit is {MAX_PROMPTS}")
    if all(isinstance(text, str) for text in value):
        if "" in value:
            raise invalid_param("prompt", "must not hold empty texts")
        return tuple(value)
    if all(isinstance(tokens, list) and tokens for tokens in value):
        return tuple(_ids(tokens) for tokens in value)
    raise invalid_param("prompt", "must be text, token ids, or a list of one of them, none of them empty")


def _ids(tokens: list[Any]) -> tuple[int, ...]:
    for token in tokens:
        if type(token) is not int or not 0 <= token <= MAX_TOKENS:
            raise invalid_param("prompt", f"must hold token ids, got {_short(token)}")
    return tuple(tokens)


def _structure(given: Mapping[str, Any]) -> StructuredOutput | None:
    """Return what the output has to be, from response_format or one of our own fields."""
    kinds = {name: given[name] for name in STRUCTURES if name in given}
    form = _response_format(given.get("response_format"))
    if len(kinds) + (form is not None) > 1:
        names = [*kinds, *(["response_format"] if form is not None else [])]
        raise invalid_param(names[-1], f"cannot go with {' and '.join(names[:-1])}")
    for name, value in kinds.items():
        if value == []:
            raise invalid_param(name, "must not be empty")
        try:
            return StructuredOutput(**{name: value})
        except InvalidRequest as error:
            raise InvalidRequest(error.message.removeprefix("structured."), param=name) from None
    return form


def _form(given: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    """Return the field that says what the output has to be."""
    if more.get("structured") is not None:
        return "tools"
    return next((name for name in (*STRUCTURES, "response_format") if name in given), "")


def _response_format(form: Any) -> StructuredOutput | None:
    param = "response_format"
    if form is None:
        return None
    if not isinstance(form, dict):
        raise invalid_param(param, f"must be an object, got {type(form).__name__}")
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutput(json_object=True)
    if kind != "json_schema":
        raise invalid_param(f"{param}.type", f"must be text, json_object or json_schema, got {_short(kind)}")
    told = form.get("json_schema")
    if not isinstance(told, dict) or not isinstance(told.get("schema"), dict):
        raise invalid_param(f"{param}.json_schema", "must be an object with a schema that is an object")
    try:
        return StructuredOutput(json_schema=told["schema"])
    except InvalidRequest as error:
        said = error.message.removeprefix("structured.json_schema")
        raise InvalidRequest(f"{param}.json_schema.schema{said}", param=param) from None
