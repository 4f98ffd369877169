"""detect_tool_format: the most specific marker decides, and an unknown template gets the generic format."""

from dataclasses import replace

import pytest

from chairlift.core.errors import ConfigError
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import (
    PARSER_ALIASES,
    TOOL_FORMATS,
    detect_tool_format,
    keep_reasoning,
    tool_format_by_name,
)
from chairlift.text.tool_formats.gemma import GEMMA, GEMMA4, TOOL_CODE
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.glm import GLM
from chairlift.text.tool_formats.harmony import HARMONY
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
)
from chairlift.text.tool_formats.marked_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from chairlift.text.tool_formats.pythonic import PYTHONIC, PYTHONIC_MARKED
from chairlift.text.tool_formats.xml_calls import DEEPSEEK_DSML, MINIMAX, QWEN_CODER, SEED_CODER
from support_shares import for_each
from support_tool_formats import ANSWERS_OF_FORMATS, read

LOOP = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
ASKS_FOR_JSON = '{% if tools is not none %}Answer with {"name": a function, "parameters": its arguments}{% endif %}'
ASKS_FOR_PYTHON = "{% if tools %}Answer with [func_a(param_a=1, param_b=2), func_b()]{% endif %}"


@for_each(
    ("template", "expected"),
    [
        (f"{TOOLS}<tool_call>{LOOP}", HERMES), (f"{TOOLS}<tool_call><function=f><parameter=k>{LOOP}", QWEN_CODER),
        (f"{TOOLS}<tool_call>f<arg_key>{LOOP}", GLM), (f"{TOOLS}[TOOL_CALLS]{LOOP}", MISTRAL),
        (f"{TOOLS}[TOOL_CALLS]f[ARGS]{LOOP}", MISTRAL_ARGS),
        (f"{TOOLS}[TOOL_CALLS]f[CALL_ID]x[ARGS]{LOOP}", MISTRAL_IDS),
        (f"{TOOLS}<|python_tag|>{ASKS_FOR_JSON}", LLAMA3), (LOOP + ASKS_FOR_JSON, LLAMA3),
        (LOOP + ASKS_FOR_PYTHON, PYTHONIC),
        (f"{TOOLS}<|python_start|>{ASKS_FOR_JSON}", PYTHONIC_MARKED["<|python_start|>"]),
        (f"{TOOLS}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", DEEPSEEK), (f"{TOOLS}<|tool_call_begin|>", KIMI),
        (f"{TOOLS}<|start|>assistant<|channel|>final<|message|>", HARMONY),
        (f"{TOOLS}<start_function_call>call:", GEMMA), (f"{TOOLS}<|tool_call>call:", GEMMA4),
        (f"{TOOLS}<minimax:tool_call>", MINIMAX), (f'{TOOLS}<｜DSML｜invoke name="', DEEPSEEK_DSML),
        (f"{TOOLS}<tool_calls>", JSON_TAGS), (f"{TOOLS}<function_call>", JSON_TAGS),
        (f"{TOOLS}<|tool_call_start|>", PYTHONIC_MARKED["<|tool_call_start|>"]),
        (f"{TOOLS}<function_calls>", PYTHONIC_MARKED["<function_calls>"]),
        (f"{TOOLS}<seed:tool_call><function=f><parameter=k>", SEED_CODER),
        (f"{TOOLS}```tool_code", TOOL_CODE), (f"{TOOLS}<|tool_call|><|/tool_call|>", PHI4),
        (f"{TOOLS}functools[", PHI4_FUNCTOOLS), (f"{TOOLS}<|tool_call|>", GRANITE),
        (f"{TOOLS}<|START_ACTION|>", COMMAND_A),
        (f"{TOOLS}Action: ```json tool_name", COMMAND_R), ("", GENERIC), (LOOP + TOOLS, GENERIC),
        ("{% for tool in tools %}{{ tool['name'] }} {{ tool['parameters'] }}{% endfor %}", GENERIC),
    ],
)  # fmt: skip
def test_a_template_has_its_format(template: str, expected: ToolFormat) -> None:
    assert detect_tool_format(template) is expected


def test_the_tokenizer_decides_where_the_template_has_no_marker() -> None:
    assert detect_tool_format(LOOP + TOOLS, {"[TOOL_CALLS]": 5, "</s>": 2}) == MISTRAL


def test_markers_are_of_no_use_where_the_template_takes_no_tools() -> None:
    assert detect_tool_format(f"{LOOP}<tool_call>", takes_tools=False) is GENERIC
    assert detect_tool_format(LOOP, {"[TOOL_CALLS]": 5}, takes_tools=False) is GENERIC


def test_markers_stay_in_the_text_where_the_tokenizer_says_that_they_are_special() -> None:
    template = f"{TOOLS}<tool_call>"
    assert not detect_tool_format(template, {"</s>": 2}).has_special_markers
    assert detect_tool_format(template, {"<tool_call>": 5}) == replace(HERMES, has_special_markers=True)


def test_a_template_of_deepseek_shows_the_notation_of_its_calls() -> None:
    since_v31 = f"{TOOLS}<｜tool▁call▁begin｜>{{{{ name }}}}<｜tool▁sep｜>{{{{ arguments }}}}"
    assert detect_tool_format(since_v31) is DEEPSEEK_V31 is tool_format_by_name("deepseek_v31")
    assert detect_tool_format(f"{TOOLS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>```json") is DEEPSEEK


def test_a_format_is_found_by_its_name() -> None:
    for name, tool_format in TOOL_FORMATS.items():
        assert tool_format_by_name(name) is tool_format and tool_format.name == name
    assert tool_format_by_name("hermes", {"<tool_call>": 5}).has_special_markers
    with pytest.raises(ConfigError, match=r"tool_call_parser must be one of hermes, .*generic, .*openai.*; got 'x'"):
        tool_format_by_name("x")


@for_each(
    ("name", "answer"),
    [
        ("hermes", "hermes"), ("llama3_json", "llama3"), ("mistral", "mistral"), ("deepseek_v3", "deepseek"),
        ("pythonic", "pythonic"), ("granite", "granite"), ("glm45", "glm"), ("openai", "harmony"),
        ("qwen3_coder", "qwen3-coder"), ("kimi_k2", "kimi"), ("minimax_m2", "minimax"), ("jamba", "json-tags"),
        ("deepseek_v32", "deepseek-v3.2"), ("phi4_mini_json", "phi4-functools"), ("functiongemma", "gemma"),
    ],
)  # fmt: skip
def test_a_parser_of_vllm_reads_the_calls_of_its_format(name: str, answer: str) -> None:
    text, calls = ANSWERS_OF_FORMATS[answer][0]
    assert read(tool_format_by_name(name), text).calls == calls
    assert not TOOL_FORMATS.keys() & PARSER_ALIASES.keys()


@pytest.mark.parametrize(
    ("tool_format", "answer"),
    [
        (GEMMA4, "<|channel>thought\nSo.<channel|>Hello <|tool_call>call:f{}<tool_call|>"),
        (MISTRAL_ARGS, "[THINK]So.[/THINK]Hello [TOOL_CALLS]f[ARGS]{}"),
        (
            COMMAND_A,
            '<|START_THINKING|>So.<|END_THINKING|>Hello <|START_ACTION|>[{"tool_name": "f", "parameters": {}}]',
        ),
    ],
)
def test_a_server_that_separates_no_reasoning_leaves_it_in_the_text(tool_format: ToolFormat, answer: str) -> None:
    kept = keep_reasoning(tool_format)
    result = read(kept, answer)
    assert result.calls == (("f", "{}"),) and result.reasoning == ""
    assert result.text == answer.partition("Hello ")[0] + "Hello "
    assert read(tool_format, answer).reasoning == "So." and keep_reasoning(HERMES) is HERMES
    assert kept.notation == tool_format.notation
