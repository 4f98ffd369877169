"""ToolsAndStructuredOutput: what a chat's answer may be: calls, text, or the client's structured output."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chairlift.core.structured_output import StructuredOutput
from chairlift.core.validation import invalid_param
from chairlift.engine.structured.json_schema.budget import LoweringBudget
from chairlift.server.openai.structured_fields import StructuredField, read_structured_output
from chairlift.server.openai.tool_choice import ToolChoice, read_tools
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.optional_call_grammar import optional_reasoning_prefix
from chairlift.text.tool_formats.base import ToolFormat


@dataclass(frozen=True, slots=True)
class ToolsAndStructuredOutput:
    """The fields of a chat that constrain its answer, made to fit each other.

    Attributes:
        tools: the tools; None where none are offered and the output needs no parser.
        structured: the client's own structured output; its `output` is None where the grammar of the tools has it.
        ignored: names of fields that have no effect.
    """

    tools: ToolChoice | None
    structured: StructuredField
    ignored: tuple[str, ...] = ()

    @classmethod
    def read(
        cls, fields: Mapping[str, Any], tool_format: ToolFormat, template: ChatTemplate | None, rendering: RenderOptions
    ) -> "ToolsAndStructuredOutput":
        """Parse the fields. Raises InvalidRequest.

        The model calls tools in `tool_format`; `template` and `rendering` say where the answer begins.
        """
        budget = LoweringBudget()
        structured = read_structured_output(fields, budget)
        if rendering.has_generation_prompt or optional_reasoning_prefix(tool_format) is None:
            tools = read_tools(fields, tool_format, budget, structured.output)
        else:
            tools = _tools_within_message(fields, tool_format, budget, structured.output)
        if tools is not None and tools.allows_answer:
            structured = replace(structured, output=None)
        if structured.output is not None and (tools is None or not tools.is_forced):
            return _beside_structured_output(tools, structured, tool_format, template)
        if tool_format.make_text_parser is not None and (tools is None or tools.tool_format is None):
            tools = ToolChoice(tool_format=tool_format)
        return cls(tools, structured, _ignored(tools))

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters that the tools need."""
        needed: dict[str, Any] = {}
        if self.tools is not None and self.tools.structured is not None:
            needed["structured"] = self.tools.structured
        if self.tools is not None and self.tools.shows_special:
            needed["skip_special_tokens"] = False
        return needed


def _beside_structured_output(
    tools: ToolChoice | None, structured: StructuredField, tool_format: ToolFormat, template: ChatTemplate | None
) -> ToolsAndStructuredOutput:  # fmt: skip
    """Return the tools that are left beside a structured output: the client's grammar leaves no room for calls."""
    ignored: tuple[str, ...] = ()
    if tools is not None and tools.tools is not None:
        tools, ignored = ToolChoice(tools=None if tool_format.is_generic else tools.tools), ("tools",)
    reasoning = None if template is None else template.reasoning_format
    if reasoning is not None and reasoning.is_read_by_tool_format and tool_format.make_text_parser is not None:
        offered = None if tools is None else tools.tools
        tools = ToolChoice(tools=offered, tool_format=tool_format, allows_answer=True)
    return ToolsAndStructuredOutput(tools, structured, (*ignored, *_ignored(tools)))


def _ignored(tools: ToolChoice | None) -> tuple[str, ...]:
    if tools is None:
        return ()
    return (*(("tools.function.strict",) if tools.ignores_strict else ()), *tools.ignored)


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
