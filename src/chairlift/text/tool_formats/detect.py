"""detect_tool_format: chooses the format of tool calls from the chat template and the tokenizer's special tokens."""

import re
from collections.abc import Collection
from dataclasses import replace

from chairlift.core.errors import ConfigError
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.gemma import GEMMA, GEMMA4, GEMMA4_WITH_THOUGHTS, TOOL_CODE
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.glm import GLM
from chairlift.text.tool_formats.harmony import HARMONY, HARMONY_WITH_CHANNELS
from chairlift.text.tool_formats.json_calls import (
    COMMAND_A,
    COMMAND_R,
    GRANITE,
    HERMES,
    JSON_TAGS,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    MISTRAL_IDS,
    PHI4,
    PHI4_FUNCTOOLS,
    WITH_REASONING,
)
from chairlift.text.tool_formats.marked_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from chairlift.text.tool_formats.pythonic import PYTHONIC, PYTHONIC_MARKED
from chairlift.text.tool_formats.xml_calls import DEEPSEEK_DSML, MINIMAX, QWEN_CODER, SEED_CODER

TOOL_FORMATS = {
    each.name: each
    for each in (
        HERMES, QWEN_CODER, LLAMA3, PYTHONIC, MISTRAL, DEEPSEEK, DEEPSEEK_DSML, KIMI, GLM, MINIMAX, HARMONY, GEMMA,
        GEMMA4, TOOL_CODE, PHI4, PHI4_FUNCTOOLS, GRANITE, COMMAND_R, COMMAND_A, JSON_TAGS, GENERIC,
    )
}  # fmt: skip
"""Name -> format."""

PARSER_ALIASES = {
    "qwen3_coder": QWEN_CODER, "qwen3_xml": QWEN_CODER, "seed_oss": SEED_CODER, "granite4": HERMES,
    "llama3_json": LLAMA3, "llama4_json": LLAMA3, "llama4_pythonic": PYTHONIC,
    "olmo3": PYTHONIC_MARKED["<function_calls>"], "lfm2": PYTHONIC_MARKED["<|tool_call_start|>"],
    "deepseek_v3": DEEPSEEK, "deepseek_v31": DEEPSEEK_V31, "deepseek_v32": DEEPSEEK_DSML, "kimi_k2": KIMI, "glm45": GLM,
    "glm47": GLM, "minimax_m2": MINIMAX, "openai": HARMONY, "functiongemma": GEMMA, "phi4_mini_json": PHI4_FUNCTOOLS,
    "granite-20b-fc": JSON_TAGS, "hunyuan_a13b": JSON_TAGS, "internlm": JSON_TAGS, "jamba": JSON_TAGS,
}  # fmt: skip
"""Name of a parser in vLLM -> format, where it is another name."""

_MARKERS: tuple[tuple[ToolFormat, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|message|>")),
    (DEEPSEEK, ("<｜tool▁call▁begin｜>",)),
    (DEEPSEEK_DSML, ("｜DSML｜", "invoke name=")),
    (MINIMAX, ("<minimax:tool_call>",)),
    (KIMI, ("<|tool_call_begin|>",)),
    (GEMMA, ("<start_function_call>",)),
    (GEMMA4, ("<|tool_call>",)),
    (GLM, ("<arg_key>",)),
    (QWEN_CODER, ("<function=", "<parameter=")),
    (COMMAND_A, ("<|START_ACTION|>",)),
    (COMMAND_R, ("Action:", "tool_name")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (PHI4, ("<|/tool_call|>",)),
    (PHI4_FUNCTOOLS, ("functools[",)),
    (GRANITE, ("<|tool_call|>",)),
    (HERMES, ("<tool_call>",)),
    *((tool_format, (marker,)) for marker, tool_format in PYTHONIC_MARKED.items()),
    *((JSON_TAGS, (marker,)) for marker in ("<tool_calls>", "<TOOLCALL>", "<function_call>", "<|action_start|>")),
    (LLAMA3, ("<|python_tag|>",)),
    (TOOL_CODE, ("```tool_code",)),
)
"""Formats and the texts that a template of theirs has all of, the most specific ones first."""

_WITH_REASONING = {each.name: each for each in (HARMONY_WITH_CHANNELS, GEMMA4_WITH_THOUGHTS, *WITH_REASONING)}
"""Name of a format that separates reasoning -> the same with parsers that leave it in the text."""

_PYTHONIC = re.compile(r"\w*func\w*\(\s*\w*param\w*\s*=")
_NAMED_JSON = re.compile(r"""name\\?["']\s*:.{0,200}(parameters|arguments)\\?["']\s*:""", re.DOTALL)
"""The example of a call that such a template shows; a template that only prints the tools' names has no colon there."""


def detect_tool_format(template: str, special_tokens: Collection[str] = (), *, takes_tools: bool = True) -> ToolFormat:
    """Return the format that a chat template teaches; GENERIC if it is unknown, or unless the template `takes_tools`.

    A template that takes tools and has no marker of calls asks for JSON objects without one, as that of Llama 3.2
    does, or for Python calls. Markers in a template that takes no tools are of no use: the model would see no tools.
    """
    if not takes_tools:
        return GENERIC
    found = _format_of_markers(template)
    if found is None and _PYTHONIC.search(template):
        found = PYTHONIC
    if found is None and _NAMED_JSON.search(template):
        found = LLAMA3
    found = found or _format_of_markers("\n".join(special_tokens)) or GENERIC
    if found is DEEPSEEK and "<｜tool▁sep｜>" in template and "```" not in template:
        found = DEEPSEEK_V31
    if found is QWEN_CODER and "<seed:tool_call>" in template:
        found = SEED_CODER
    if found is MISTRAL and "[ARGS]" in template:
        found = MISTRAL_IDS if "[CALL_ID]" in template else MISTRAL_ARGS
    return replace(found, has_special_markers=True) if _is_special(found, special_tokens) else found


def tool_format_by_name(name: str, special_tokens: Collection[str] = ()) -> ToolFormat:
    """Return the format of a name, or of vLLM's name for it. Raises ConfigError naming the formats."""
    found = TOOL_FORMATS.get(name) or PARSER_ALIASES.get(name)
    if found is None:
        names = ", ".join((*TOOL_FORMATS, *PARSER_ALIASES))
        raise ConfigError(f"tool_call_parser must be one of {names}; got {name[:40]!r}", option="tool_call_parser")
    return replace(found, has_special_markers=True) if _is_special(found, special_tokens) else found


def _format_of_markers(text: str) -> ToolFormat | None:
    return next((found for found, markers in _MARKERS if all(marker in text for marker in markers)), None)


def _is_special(found: ToolFormat, special_tokens: Collection[str]) -> bool:
    """Return whether a marker of the format is a special token of this tokenizer."""
    return any(marker in special_tokens for each, markers in _MARKERS if each.name == found.name for marker in markers)


def keep_reasoning(tool_format: ToolFormat) -> ToolFormat:
    """Return the format for a server that does not separate reasoning: only calls are taken out of the text."""
    parsers = _WITH_REASONING.get(tool_format.name)
    if parsers is None:
        return tool_format
    return replace(tool_format, make_parser=parsers.make_parser, make_text_parser=parsers.make_text_parser)
