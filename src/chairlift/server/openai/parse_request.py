"""BaseRequest and read_*: parse a JSON body into a valid request, or raise InvalidRequest that names the field."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.item_errors import item_in_errors
from chairlift.core.numeric_limits import MAX_HTTP_TIMEOUT_SECONDS, MAX_PRIORITY, MIN_HTTP_PRIORITY
from chairlift.core.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_LOGITS_PROCESSORS,
    MAX_TOKENS,
    MODEL_DEFAULTS,
    SamplingParams,
)
from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import as_tuple, boolean, integer, invalid_param, number, string, token_ids
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.llm.text_service import Prompt
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.request_fields import (
    AS_MANY_AS_FIT,
    CHAT,
    COMPLETION,
    MAX_FINGERPRINT_CHARS,
    MAX_MESSAGES,
    MAX_MODALITIES,
    MAX_PROMPTS,
    MAX_SALT_CHARS,
    MAX_TOP_LOGPROBS,
    Field,
)
from chairlift.protocol.request_schemas import CONTINUOUS_USAGE, INCLUDE_USAGE
from chairlift.server.openai.chat_template_fields import read_render_options
from chairlift.server.openai.structured_fields import StructuredField, read_structured_output
from chairlift.server.openai.tool_choice import ToolChoice, read_tools
from chairlift.text.chat_messages import ChatMessages
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.optional_call_grammar import optional_reasoning_prefix
from chairlift.text.tool_formats.base import ToolFormat

MAX_RESUMED = MAX_TOKENS
MAX_USER_CHARS = 128
MAX_TOTAL_CHOICES = 128


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(BaseRequest):
    """A request to /v1/chat/completions."""

    messages: ChatMessages
    tools: ToolChoice | None
    logprobs: bool
    rendering: RenderOptions
    includes_reasoning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(BaseRequest):
    """A request to /v1/completions; each prompt has `params.n` choices.

    Attributes:
        prompts: texts or token ids.
        fills_context: whether an output without max_tokens has as many tokens as fit.
    """

    prompts: tuple[Prompt, ...]
    fills_context: bool

    def resumed_choices(self, number: int) -> tuple[tuple[int, ...], ...]:
        """Return the delivered tokens of the choices of one prompt; `resume` has those of all prompts in order."""
        if len(self.prompts) == 1:
            return self.resume
        return self.resume[number * self.params.n : (number + 1) * self.params.n]


def read_chat(
    body: Mapping[str, Any], tool_format: ToolFormat, template: ChatTemplate | None = None
) -> ChatRequest:  # fmt: skip
    """Parse a body of /v1/chat/completions. Raises InvalidRequest.

    `template` renders the messages; the model calls tools in `tool_format`.
    """
    fields, ignored = split_fields(body, CHAT)
    rendering, unread = read_render_options(fields, template)
    source = "" if template is None else template.text
    messages = ChatMessages.parse(listed_messages(fields["messages"]), source)
    ignored = (*ignored, *unread, *messages.unread)
    for modality in as_tuple("modalities", fields.get("modalities"), MAX_MODALITIES, str):
        if modality != "text":
            raise invalid_param("modalities", f"must be text, the only supported output, got {format_short(modality)}")
    budget = LoweringBudget()
    structured = read_structured_output(fields, budget)
    if rendering.has_generation_prompt or optional_reasoning_prefix(tool_format) is None:
        tools = read_tools(fields, tool_format, budget, structured.output)
    else:
        tools = _tools_within_message(fields, tool_format, budget, structured.output)
    if tools is not None and tools.allows_answer:
        structured = replace(structured, output=None)
    if structured.output is not None and (tools is None or not tools.is_forced):
        if tools is not None and tools.tools is not None:  # the client's grammar leaves no room for calls
            tools, ignored = ToolChoice(tools=None if tool_format.is_generic else tools.tools), (*ignored, "tools")
        reasoning = None if template is None else template.reasoning_format
        if reasoning is not None and reasoning.is_read_by_tool_format and tool_format.make_text_parser is not None:
            offered = None if tools is None else tools.tools
            tools = ToolChoice(tools=offered, tool_format=tool_format, allows_answer=True)
    elif tool_format.make_text_parser is not None and (tools is None or tools.tool_format is None):
        tools = ToolChoice(tool_format=tool_format)
    has_logprobs = boolean("logprobs", fields.pop("logprobs", False))
    top = fields.pop("top_logprobs", None)
    if top is not None:
        top = integer("top_logprobs", top, 0, MAX_TOP_LOGPROBS)
        if not has_logprobs:
            raise invalid_param("top_logprobs", "needs logprobs to be true")
    limits = {name: fields.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in fields}
    for name, max_tokens in limits.items():  # the second one wins
        fields["max_tokens"] = _output_tokens(name, max_tokens)
    more: dict[str, Any] = {"logprobs": (top or 0) if has_logprobs else None}
    if tools is not None and tools.structured is not None:
        more["structured"] = tools.structured
    if tools is not None and tools.shows_special:
        more["skip_special_tokens"] = False
    if tools is not None and tools.ignores_strict:
        ignored = (*ignored, "tools.function.strict")
    if tools is not None:
        ignored = (*ignored, *tools.ignored)
    common = _common(fields, ignored, structured, more)
    return ChatRequest(
        **common, messages=messages, tools=tools, logprobs=has_logprobs, rendering=rendering,
        includes_reasoning=boolean("include_reasoning", fields.get("include_reasoning", True)),
    )  # fmt: skip


def _output_tokens(name: str, value: Any) -> int | None:
    """Return the maximum number of output tokens, None for as many as fit. Raises InvalidRequest."""
    return None if value == AS_MANY_AS_FIT else integer(name, value, 1, MAX_TOKENS)


def _tools_within_message(
    fields: Mapping[str, Any], tool_format: ToolFormat, budget: LoweringBudget, answer: StructuredOutput | None
) -> ToolChoice | None:
    """Parse the tools where the answer begins within a message of GPT-OSS. Raises InvalidRequest for a forced call."""
    tools = read_tools(fields, replace(tool_format, auto_notations=()), budget, answer)
    if tools is not None and tools.is_forced:
        raise invalid_param(
            "tool_choice",
            "cannot force a call where the answer begins within a message, because each call of this model is a message"
            " of its own: leave out continue_final_message and add_generation_prompt, or use tool_choice auto",
        )
    return tools


def read_completion(body: Mapping[str, Any]) -> CompletionRequest:
    """Parse a body of /v1/completions. Raises InvalidRequest."""
    fields, ignored = split_fields(body, COMPLETION)
    prompts = _prompts(fields["prompt"])
    more: dict[str, Any] = {name: fields.pop(name) for name in ("best_of", "echo") if fields.get(name) is not None}
    if (logprobs := fields.pop("logprobs", None)) is not None:
        more["logprobs"] = integer("logprobs", logprobs, 0, MAX_TOP_LOGPROBS)
        if more.get("echo") is True:
            more["prompt_logprobs"] = more["logprobs"]
    fills_context = boolean("fill_context", fields.get("fill_context", False))
    if fields.get("max_tokens") == AS_MANY_AS_FIT:
        fields["max_tokens"], fills_context = None, True
    common = _common(fields, ignored, read_structured_output(fields, LoweringBudget()), more)
    params: SamplingParams = common["params"]
    if params.best_of is not None and common["stream"]:
        raise invalid_param(
            "best_of", "cannot be combined with stream, because the best choice is known only at the end"
        )
    if len(prompts) * params.num_choices > MAX_TOTAL_CHOICES:
        raise invalid_param(
            "n",
            f"times the number of prompts must be at most {MAX_TOTAL_CHOICES}, got {len(prompts) * params.num_choices}",
        )
    if len(prompts) > 1 and len(common["resume"]) > (num_choices := len(prompts) * params.n):
        raise invalid_param(
            "resume", f"has tokens of {len(common['resume'])} choices, the request has {num_choices} of all prompts"
        )
    return CompletionRequest(**common, prompts=prompts, fills_context=fills_context)


def listed_messages(messages: Any) -> list[Any]:
    """Return `messages` if it is a list of an allowed length; ChatMessages.parse checks each message."""
    if not isinstance(messages, list):
        raise invalid_param("messages", f"must be a list of messages, got {type(messages).__name__}")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise invalid_param("messages", f"must have 1 to {MAX_MESSAGES} messages, got {len(messages)}")
    return messages


def _common(
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


_NONE = Field({})


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


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """Return the prompts of the field `prompt`: one, or a list of them."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise invalid_param("prompt", "must be text, token ids, or a non-empty list of one of them")
    if all(type(token) is int for token in value):
        return (_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise invalid_param("prompt", f"has {len(value)} entries, the limit is {MAX_PROMPTS}")
    made: list[Prompt] = []
    for index, each in enumerate(value):
        with item_in_errors("prompt", index, len(value), ("prompt",)):
            if each == "":
                raise invalid_param("prompt", "must not contain an empty text")
            if type(each) is not type(value[0]) or not isinstance(each, str | list) or not each:
                raise invalid_param("prompt", "must be text, token ids, or a non-empty list of one of them")
            made.append(each if isinstance(each, str) else _ids(each))
    return tuple(made)


def _ids(tokens: list[Any]) -> tuple[int, ...]:
    for token in tokens:
        if type(token) is not int or not 0 <= token <= MAX_TOKENS:
            raise invalid_param("prompt", f"must contain only token ids, got {format_short(token)}")
    return tuple(tokens)
