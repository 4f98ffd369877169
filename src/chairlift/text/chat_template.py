"""ChatTemplate: renders messages with the model's chat template in a sandbox and marks special tokens in user text.

A special token in a user's text must stay text, but templates inspect the text (they trim it, split it at
`</think>`), so it cannot be wrapped in anything. Instead the first character of each one is replaced by a private-use
character that occurs nowhere else, and restored after rendering: at these places the template did not write the
special token. Markers of reasoning in an assistant's message are left as they are.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from chairlift.core.chat_template_names_and_limits import REASONING_FIELDS
from chairlift.core.clock import Clock
from chairlift.core.errors import ChairliftError, InvalidRequest, ModelError
from chairlift.core.validation import invalid_param
from chairlift.text.chat_messages import checked_role, flat_content
from chairlift.text.chat_template_files import read_templates
from chairlift.text.jinja_sandbox import ChatEnvironment, TemplateLimits, TemplateRaised
from chairlift.text.marker_stand_ins import without_stand_ins
from chairlift.text.plain_json import plain_json
from chairlift.text.reasoning_formats import AUTO, NONE, REASONING_MARKERS, choose_reasoning_format
from chairlift.text.template_abilities import TemplateAbilities
from chairlift.text.template_probe import probe_template
from chairlift.text.template_variables import check_variables, find_variables, settable_variables
from chairlift.text.tokenizer import ChatPrompt, Tokenizer, special_pattern

PLACEHOLDERS = range(0xF0000, 0xFFFFE)  # supplementary private use area A
END = "CONTINUED-FINAL-MESSAGE "
"""Text that marks the end of a final message that the output continues; its space shows whether a template trims."""

MAX_ERROR_CHARS = 500  # characters of a template's own error


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """How a conversation becomes a prompt, besides its messages and tools.

    Attributes:
        variables: further template variables (enable_thinking, ...); one that the template does not read is unused.
        documents: documents for templates that read them.
        add_generation_prompt: end with the beginning of the assistant's message; None for True unless
            continue_final_message is set.
        continue_final_message: end with the last message's text, which the output continues.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def has_generation_prompt(self) -> bool:
        """Whether the prompt ends with the beginning of the assistant's message."""
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt


class ChatTemplate:
    """The chat template (or several by name: `default`, `tool_use`) of one model. Thread-safe.

    A model without a template raises an error only when a chat request is rendered.

    Attributes:
        variables: names of the variables that the templates read and that a request may set.
        reads_documents: whether the templates read `documents`.
        named_tokens: names of the tokenizer's tokens, which are variables of the templates.
        reasoning_format: format of the model's reasoning; None where it has none.
        keeps_reasoning: whether the operator wants reasoning to stay in the text.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        limits: TemplateLimits | None = None,
        clock: Clock | None = None,
        cpu_clock: Clock | None = None,
        wall_clock: Callable[[], datetime] = datetime.now,
        default_variables: Mapping[str, Any] | None = None,
        reasoning_parser: str = AUTO,
    ) -> None:
        """Compile the templates; `sources` maps names to Jinja text, `wall_clock` supplies strftime_now.

        `default_variables` are the variables of requests that do not set them; `reasoning_parser` names the
        reasoning's format. Raises ModelError when a template is not valid Jinja, ConfigError for an unknown format,
        InvalidRequest for a variable that may not be set.
        """
        self._environment = ChatEnvironment(limits or TemplateLimits(), clock, cpu_clock, wall_clock)
        self._sources = dict(sources)
        self._templates: dict[str, jinja2.Template] = {}
        self._tools_variables: dict[str, str] = {}  # template -> variable of the tools: SmolLM3's reads `xml_tools`
        read: set[str] = set()
        for name, source in sources.items():
            try:
                self._templates[name] = self._environment.from_string(source)
                names = find_variables(self._environment, source)
            except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
                line = f" at line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
                raise ModelError(f"the chat template {name!r} is not valid Jinja{line}: {error}") from error
            self._tools_variables[name] = "xml_tools" if "xml_tools" in names and "tools" not in names else "tools"
            read |= names
        self._named_variables = dict(tokenizer.named_tokens)
        self.named_tokens = frozenset(self._named_variables)
        self.variables = settable_variables(read, self.named_tokens)
        self.reads_documents = "documents" in read
        self._default_variables = check_variables(
            default_variables or {}, self.named_tokens, "default_chat_template_kwargs"
        )
        self.keeps_reasoning = reasoning_parser == NONE
        self._special_tokens = tuple(tokenizer.special_tokens)
        self._pattern = special_pattern(self._special_tokens)
        self.reasoning_format = choose_reasoning_format(reasoning_parser, self.text, self._first_prompt)

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer) -> "ChatTemplate":
        """Read a model folder's template from the first file that has one, in transformers' order.

        chat_template.jinja and additional_chat_templates/*.jinja, chat_template.json, tokenizer_config.json.
        Raises ModelError naming the file when one of them is invalid.
        """
        return cls(read_templates(folder), tokenizer)

    def abilities(self, *, with_tools: bool) -> TemplateAbilities:
        """Return what the template writes that renders conversations with tools, or without them."""
        return self._abilities_with_tools if with_tools else self._abilities_without_tools

    @cached_property
    def _abilities_with_tools(self) -> TemplateAbilities:
        return probe_template(self._probe_prompt, with_tools=True)

    @cached_property
    def _abilities_without_tools(self) -> TemplateAbilities:
        return probe_template(self._probe_prompt, with_tools=False)

    def _first_prompt(self) -> str:
        """Return the prompt of a message of the user, "" where the template rejects it."""
        try:
            return self.render_checked([{"role": "user", "content": "Hello."}]).text
        except ChairliftError:
            return ""

    def _probe_prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        return self.render_checked(messages, tools=tools).text

    @cached_property
    def text(self) -> str:
        """Return the source of all templates, to detect the notations they use."""
        return "\n".join(self._sources.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: RenderOptions | None = None,
    ) -> ChatPrompt:
        """Render a conversation to a prompt, as transformers' apply_chat_template does.

        Args:
            messages: at least one; `role` is one of ROLES, `content` a string or a list of {"type": "text", "text":
                ...} (joined by line breaks). A field that is None counts as absent.
            tools: tools that the model may call, objects as in the chat completions API.
            options: further variables, and how the prompt ends.

        Raises:
            InvalidRequest: messages, tools or options are malformed (the message says where), the model has no
                template, the template rejects them with its own message, or it exceeds its limits.
            ModelError: the template tried to leave its sandbox.
        """
        plain_tools = None if tools is None else checked_tools(tools)
        return self.render_checked(checked_messages(messages), tools=plain_tools, options=options)

    def render_checked(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None,
        options: RenderOptions | None = None,
    ) -> ChatPrompt:  # fmt: skip
        """Render messages and tools of template_input, which are known to be well-formed; otherwise as render."""
        name, options = self._choose(bool(tools)), options or RenderOptions()
        context: dict[str, Any] = {"messages": messages, "tools": tools}
        context["documents"] = plain_json(options.documents, "documents")
        context[self._tools_variables[name]] = context["tools"]
        for variable, value in {**self._default_variables, **options.variables}.items():
            if variable in self.variables:
                context[variable] = plain_json(value, f"chat_template_kwargs.{variable}")
        swap = self._choose_placeholders(context) if any(map(self._pattern.search, _strings(context))) else {}
        if swap:
            messages = [self._swapped_message(message, swap) for message in context.pop("messages")]
            context = {**_replace_characters(context, self._first_characters, swap), "messages": messages}
        final = ""
        if options.continue_final_message:
            context["messages"], final = _with_marked_end(context["messages"], options)
        fixed = {**self._named_variables, "add_generation_prompt": options.has_generation_prompt}
        text = without_stand_ins(self._render(self._templates[name], {**fixed, **context}))
        if options.continue_final_message:
            text = _cut_after(text, without_stand_ins(final))
        if not swap:
            return ChatPrompt(text)
        for placeholder in swap.values():
            for escaped in _escapes(placeholder):
                text = text.replace(escaped, placeholder)
        back = {ord(placeholder): char for char, placeholder in swap.items()}
        literal = frozenset(offset for offset, char in enumerate(text) if ord(char) in back)
        return ChatPrompt(text.translate(back), literal)

    def _choose(self, with_tools: bool) -> str:
        """Return the name of the template to render."""
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._templates:
                return name
        if self._templates:
            message = f"the model has the chat templates {sorted(self._templates)}, but none is named 'default'"
        else:
            message = "the model has no chat template; send a prompt instead of messages"
        raise InvalidRequest(message, param="messages")

    def _render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        try:
            return self._environment.rendered(template, variables)
        except ChairliftError:
            raise
        except TemplateRaised as error:
            raise InvalidRequest(str(error)[:MAX_ERROR_CHARS], param="messages") from error
        except jinja2.exceptions.SecurityError as error:
            raise ModelError(
                f"the chat template uses an operation that its sandbox forbids: {str(error)[:MAX_ERROR_CHARS]}"
            ) from error
        except Exception as error:  # a template can raise any exception
            message = (
                "the chat template cannot render these messages: "
                f"{type(error).__name__}: {str(error)[:MAX_ERROR_CHARS]}"
            )
            raise InvalidRequest(message, param="messages") from error

    @cached_property
    def _first_characters(self) -> re.Pattern[str]:
        """The pattern of the first character of every special token in a text, overlapping ones too."""
        return re.compile(f"(?={self._pattern.pattern}).", re.DOTALL)

    @cached_property
    def _answer_first_characters(self) -> re.Pattern[str]:
        """The same in an answer's content, whose reasoning the templates find by its markers."""
        pattern = special_pattern(token for token in self._special_tokens if token not in REASONING_MARKERS).pattern
        return re.compile(f"(?={pattern}).", re.DOTALL)

    def _swapped_message(self, message: Mapping[str, Any], swap: Mapping[str, str]) -> dict[str, Any]:
        """Return a message with placeholders; the content of an answer keeps the markers of its reasoning."""
        swapped: dict[str, Any] = _replace_characters(message, self._first_characters, swap)
        if message["role"] == "assistant" and "content" in message:
            swapped["content"] = _replace_characters(message["content"], self._answer_first_characters, swap)
        return swapped

    def _choose_placeholders(self, context: Mapping[str, Any]) -> dict[str, str]:
        """Choose an unused private-use character for each first character of a special token."""
        texts = [*self._sources.values(), *_strings(context)]
        used = set().union(*texts)
        free = (
            char for char in map(chr, PLACEHOLDERS)
            if char not in used and not any(escaped in text for escaped in _escapes(char) for text in texts)
        )  # fmt: skip
        swap = dict(zip(sorted({spelled[0] for spelled in self._special_tokens}), free, strict=False))
        if len(swap) < len({spelled[0] for spelled in self._special_tokens}):
            raise InvalidRequest(
                "the messages use every character of the private use area of Unicode; remove some of them",
                param="messages",
            )
        return swap


def _with_marked_end(
    messages: Sequence[Mapping[str, Any]], options: RenderOptions
) -> tuple[list[Mapping[str, Any]], str]:  # fmt: skip
    """Return the messages with END behind the final one, which the output continues, and that message's text."""
    if options.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message cannot be combined with add_generation_prompt: either the model continues the "
            "final message, or it starts a new one", param="continue_final_message",
        )  # fmt: skip
    last = messages[-1]
    if last["role"] != "assistant":
        raise InvalidRequest(
            f"continue_final_message needs a final message of the assistant, got one of role {last['role']}",
            param="messages",
        )
    if not isinstance(text := last.get("content"), str):
        raise InvalidRequest("continue_final_message needs a final message with content", param="messages")
    return [*messages[:-1], {**last, "content": text + END}], text


def _cut_after(prompt: str, final: str) -> str:
    """Return a prompt up to the end of the final message, as transformers cuts it: trimmed if the template trims."""
    mark = END.strip()
    if mark not in prompt or final.strip() not in prompt:
        raise InvalidRequest(
            "continue_final_message is not possible: the chat template does not write the whole final message, or "
            "changes it", param="continue_final_message",
        )  # fmt: skip
    cut = prompt.rindex(mark)
    return prompt[:cut] if prompt.startswith(END, cut) else prompt[:cut].rstrip()


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages as plain lists, objects, strings and numbers, contents as strings.

    Raises InvalidRequest naming the error and its place (`messages[3].content`).
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise invalid_param("messages", f"must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise invalid_param("messages", "must have at least one message, got none")
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def checked_tools(tools: Any) -> list[dict[str, Any]]:
    """Return the tools as plain data. Raises InvalidRequest for a tool without a name."""
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise invalid_param("tools", f"must be a list of tools, got {type(tools).__name__}")
    plain = [plain_json(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    for index, tool in enumerate(plain):
        if not isinstance(tool, dict):
            raise invalid_param(f"tools[{index}]", f"must be an object, got {type(tool).__name__}")
        function = tool if tool.get("function") is None else tool["function"]
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid_param(f"tools[{index}].function.name", "must be a string")
    return plain


def _checked_message(message: Any, at: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise invalid_param(at, f"must be an object with role and content, got {type(message).__name__}")
    plain: dict[str, Any] = {key: value for key, value in plain_json(message, at).items() if value is not None}
    role = checked_role(plain, at)
    if "content" in plain:
        plain["content"] = flat_content(plain["content"], f"{at}.content")
    elif role != "assistant" or not (plain.get("tool_calls") or plain.get("function_call")):
        raise invalid_param(f"{at}.content", "is missing")
    reasoning = next((plain[name] for name in REASONING_FIELDS if name in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _escapes(placeholder: str) -> tuple[str, ...]:
    """Return how a template may write a placeholder: as JSON in ASCII, as Python, and as in a URL."""
    return json.dumps(placeholder)[1:-1], repr(placeholder)[1:-1], quote(placeholder)


def _replace_characters(value: Any, pattern: re.Pattern[str], swap: Mapping[str, str]) -> Any:
    """Copy JSON data and replace the characters that `pattern` matches, in keys too."""
    if isinstance(value, str):
        return pattern.sub(lambda match: swap[match.group()], value)
    if isinstance(value, dict):
        return {
            _replace_characters(key, pattern, swap): _replace_characters(item, pattern, swap)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_replace_characters(item, pattern, swap) for item in value]
    return value
