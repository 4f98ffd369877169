"""ToolChoice: parses the tools of a request, and compiles calls into a grammar."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import MAX_STRUCTURED_CHARS, ReasoningPrefix, StructuredOutput
from chairlift.core.validation import boolean, invalid_param
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.engine.structured.json_schema.errors import short_reason
from chairlift.engine.structured.json_schema.lowering import lower
from chairlift.protocol.plain_choice import AUTO, CHOICES, NONE, REQUIRED, allows_one_call, plain_choice
from chairlift.protocol.request_schemas import MAX_TOOL_NAME_CHARS, MAX_TOOLS
from chairlift.server.openai.offered_tools import CUSTOM, FUNCTION, OfferedTools, called_of, tool_type
from chairlift.text.calls_or_json import calls_or_json_parser
from chairlift.text.custom_tool_calls import CustomCallParser
from chairlift.text.forced_call_grammar import forced_call_parser, generic_grammar, reasoning_prefix, tool_call_grammar
from chairlift.text.optional_call_grammar import optional_call_grammar, optional_reasoning_prefix
from chairlift.text.tagged_argument_grammar import NoTaggedArgumentsError
from chairlift.text.tool_formats.base import ToolFormat, ToolSchemas
from chairlift.text.tool_formats.tool_call_parser import ToolCallParser

ALLOWED_TOOLS = "allowed_tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The tools of a request.

    Attributes:
        tools: the tools that the model is shown; None where none may be called.
        schemas: name of each tool that may be called -> schema of its arguments.
        tool_format: the format in which the output is parsed; None where it is not parsed.
        is_forced: whether a response must call.
        structured: the grammar of the output; None where the model may choose and no tool of its own format is strict.
        allows_answer: whether the response may be the client's own structured output, instead of calls.
        allows_parallel_calls: whether a response may have more than one call.
        ignored: places of the keywords in schemas that a forced call does not enforce, and types of tools that were
            left out.
        custom_names: names of the custom tools, which the model is shown as functions.
    """

    tools: list[dict[str, Any]] | None = None
    schemas: ToolSchemas = field(default_factory=dict)
    tool_format: ToolFormat | None = None
    is_forced: bool = False
    structured: StructuredOutput | None = None
    allows_answer: bool = False
    allows_parallel_calls: bool = True
    ignored: tuple[str, ...] = ()
    custom_names: frozenset[str] = frozenset()

    @property
    def prefill(self) -> str:
        """The first text of the response, which is placed at the end of the prompt."""
        # Where the model reasons first, its call cannot begin at the end of the prompt.
        if not self.is_forced or self.tool_format is None or self.tool_format.follows_reasoning:
            return ""
        return self.tool_format.prefill

    @property
    def _is_bare(self) -> bool:
        """Whether a forced call is bare JSON: its marker, if there is one, is at the end of the prompt."""
        tool_format = self.tool_format
        if not self.is_forced or tool_format is None or tool_format.notation is not None:
            return False
        # Behind reasoning the model writes the marker itself, so the call is not bare.
        return not (tool_format.follows_reasoning and tool_format.prefill)

    @property
    def shows_special(self) -> bool:
        """Whether calls are written with special tokens, so that these must stay in the text."""
        return self.tool_format is not None and self.tool_format.has_special_markers and not self._is_bare

    @property
    def ignores_strict(self) -> bool:
        """Whether a tool sets `strict` and no grammar enforces it, because the model may choose to call."""
        return self.structured is None and any(map(_is_strict, self.tools or ()))

    def make_parser(self) -> ToolCallParser | None:
        """Make the parser of one response; None where calls are not parsed."""
        parser = self._format_parser()
        return CustomCallParser(parser, self.custom_names) if parser is not None and self.custom_names else parser

    def _format_parser(self) -> ToolCallParser | None:
        if self.tool_format is None:
            return None
        if self.allows_answer:
            return calls_or_json_parser(self.tool_format, self.schemas)
        if self.tools is None:
            return None if self.tool_format.make_text_parser is None else self.tool_format.make_text_parser()
        return forced_call_parser(self.schemas) if self._is_bare else self.tool_format.make_parser(self.schemas)


def read_tools(
    fields: Mapping[str, Any], tool_format: ToolFormat, budget: LoweringBudget | None = None,
    answer: StructuredOutput | None = None,
) -> ToolChoice | None:  # fmt: skip
    """Parse tools, tool_choice and parallel_tool_calls; return None without tools. Raises InvalidRequest.

    The model calls tools in `tool_format`; lowering their schemas uses the request's budget. Where the model may
    choose, a format that a grammar enforces goes without one that would be too long, and `answer` is the client's
    structured output, which the grammar has beside the calls if it is JSON and the format may_answer_json.
    """
    sent, choice = fields.get("tools"), plain_choice(fields.get("tool_choice"))
    allows_parallel = boolean("parallel_tool_calls", fields.get("parallel_tool_calls", True))
    allows_parallel = allows_parallel and not allows_one_call(fields.get("tool_choice"))
    offered = OfferedTools.read([] if sent is None else sent)
    left_out = offered.left_out.names
    if not offered.tools:
        if choice in (None, NONE, AUTO):
            return ToolChoice(ignored=left_out) if left_out else None
        if not (left_out and (choice == REQUIRED or tool_type(choice))):
            raise invalid_param("tool_choice", "needs tools, got none")
        _callable_names(choice, offered.schemas)  # it may name a tool that is left out, and no other
        return ToolChoice(ignored=(*left_out, "tool_choice"))
    left_out += ("tool_choice",) if _has_no_effect(choice) else ()
    tools, schemas = offered.tools, offered.schemas
    names, is_forced = _callable_names(choice, schemas)
    if choice == NONE:
        return ToolChoice(ignored=left_out)
    # A choice that names one function asks for one call of it.
    if tool_type(choice) in (FUNCTION, CUSTOM):
        allows_parallel = False
    allowed = {name: schema for name, schema in schemas.items() if name in names}
    structured: StructuredOutput | None = None
    allows_answer = tool_format.may_answer_json and not is_forced and _is_json(answer)
    if not is_forced and not tool_format.is_enforced:
        # Where the model may choose, only tools with `strict` are enforced; the arguments of the others are any object.
        strict = {tool["function"]["name"] for tool in tools if _is_strict(tool)}
        names = strict & allowed.keys() if tool_format.auto_notations else ()
    enforceable, ignored = _enforceable(offered, names, budget or LoweringBudget())
    if is_forced:
        tool_format, grammar = _forced_calls(tool_format, enforceable, allowed, several=allows_parallel)
        structured = _enforced_output(grammar, reasoning_prefix(tool_format))
    else:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
        if tool_format.is_enforced:
            grammar = generic_grammar(enforceable, several=allows_parallel)
            structured = StructuredOutput(grammar=grammar) if len(grammar) <= MAX_STRUCTURED_CHARS else None
        elif tool_format.auto_notations and (allows_answer or (names and answer is None)):
            structured = _optional_calls(
                tool_format, {name: enforceable.get(name, {"type": "object"}) for name in allowed}, allowed,
                several=allows_parallel, answer=_answer_schema(answer) if allows_answer else None,
            )  # fmt: skip
            allows_answer = allows_answer and structured is not None
    return ToolChoice(
        tools=tools, schemas=allowed, tool_format=tool_format, is_forced=is_forced, structured=structured,
        allows_answer=allows_answer, allows_parallel_calls=allows_parallel, ignored=(*left_out, *ignored),
        custom_names=frozenset(offered.custom_names),
    )  # fmt: skip


def _enforceable(
    offered: OfferedTools, names: Collection[str], budget: LoweringBudget
) -> tuple[dict[str, Any], tuple[str, ...]]:  # fmt: skip
    """Return the schemas of the tools that may be called as a grammar takes them, and the ignored keywords.

    Raises InvalidRequest for a schema that no grammar can enforce, of a tool with `strict` also for single keywords.
    """
    enforceable: dict[str, Any] = {}
    ignored: list[str] = []
    for tool, place, (each, schema) in zip(offered.tools, offered.places, offered.schemas.items(), strict=True):
        if each in names:
            at = f"{place}.parameters"
            try:
                enforceable[each], places = lower(schema, strict=_is_strict(tool), budget=budget)
            except ValueError as error:
                raise invalid_param(at, f"cannot be enforced: {short_reason(error)}") from None
            ignored += [at + place for place in places]
    return enforceable, tuple(ignored)


def _is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def _is_json(answer: StructuredOutput | None) -> bool:
    return answer is not None and (answer.json_object or answer.schema not in (None, False))


def _answer_schema(answer: StructuredOutput | None) -> dict[str, Any]:
    """Return the schema of a structured output in JSON, which was lowered before."""
    if answer is None or answer.json_object:
        return {"type": "object"}
    return {} if answer.schema is True else dict(answer.schema)


def _forced_calls(
    tool_format: ToolFormat, enforceable: ToolSchemas, schemas: ToolSchemas, *, several: bool
) -> tuple[ToolFormat, str]:
    """Return the format of forced calls and their grammar: JSON objects where its notation cannot express a schema."""
    try:
        return tool_format, tool_call_grammar(tool_format, enforceable, several=several, parsed=schemas)
    except NoTaggedArgumentsError:
        bare = replace(tool_format, notation=None)
        return bare, tool_call_grammar(bare, enforceable, several=several)


def _optional_calls(
    tool_format: ToolFormat, enforceable: ToolSchemas, schemas: ToolSchemas, *, several: bool,
    answer: dict[str, Any] | None,
) -> StructuredOutput | None:  # fmt: skip
    """Return the grammar of an answer that may call, None where the format cannot express the arguments of a tool."""
    try:
        grammar = optional_call_grammar(tool_format, enforceable, several=several, answer=answer, parsed=schemas)
    except NoTaggedArgumentsError:
        return None
    return _enforced_output(grammar, optional_reasoning_prefix(tool_format))


def _enforced_output(grammar: str, prefix: ReasoningPrefix | None) -> StructuredOutput:
    try:
        return StructuredOutput(grammar=grammar, reasoning_prefix=prefix)
    except InvalidRequest as error:
        # The client has sent tools and not a grammar, so the error names these.
        message = error.message.removeprefix("structured.grammar ")
        raise invalid_param("tools", f"cannot be enforced: the grammar of all tools {message}") from None


def _callable_names(choice: Any, schemas: Mapping[str, Any]) -> tuple[Collection[str], bool]:
    """Return the names of the tools that may be called, and whether one of them must be. Raises InvalidRequest."""
    if choice is None or choice in CHOICES:
        return schemas, choice == REQUIRED
    kind = tool_type(choice)
    if kind in (FUNCTION, CUSTOM):
        return [_checked_name(choice, schemas)], True
    if _has_no_effect(choice):
        return schemas, False
    allowed = None
    if kind == ALLOWED_TOOLS:  # the Responses API has its members beside the type
        allowed = choice.get(ALLOWED_TOOLS, choice if "tools" in choice else None)
    if not isinstance(allowed, dict):
        raise _invalid_choice()
    if allowed.get("mode") not in (AUTO, REQUIRED):
        raise invalid_param("tool_choice", "has allowed_tools whose mode must be auto or required")
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise invalid_param("tool_choice", f"has allowed_tools whose tools must be 1 to {MAX_TOOLS} functions")
    named = [_checked_name(tool, schemas) for tool in tools if tool_type(tool) in ("", FUNCTION, CUSTOM)]
    return named, allowed["mode"] == REQUIRED and bool(named)


def _has_no_effect(choice: Any) -> bool:
    """Whether a choice names a tool of a type that was left out."""
    return tool_type(choice) not in ("", FUNCTION, CUSTOM, ALLOWED_TOOLS)


def _checked_name(choice: Any, schemas: Mapping[str, Any]) -> str:
    """Return the name of a function or a custom tool that is one of the tools. Raises InvalidRequest."""
    kind = tool_type(choice)
    called = called_of(choice, kind) if kind in (FUNCTION, CUSTOM) else None
    name = None if called is None else called.get("name")
    if not isinstance(name, str):
        raise _invalid_choice()
    if name not in schemas:
        raise invalid_param("tool_choice", f"names {name[:MAX_TOOL_NAME_CHARS]!r}, which is not among the tools")
    return name


def _invalid_choice() -> InvalidRequest:
    message = "must be none, auto, required or an object that names a function or allowed_tools"
    return invalid_param("tool_choice", message)
