"""ReasoningFormat: the format is detected from the template, and the end of a prompt tells where the output begins."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.core.structured_output import ReasoningPrefix
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.reasoning_formats import (
    HARMONY,
    REASONING_FORMATS,
    REASONING_PARSERS,
    THINK_TAGS,
    ReasoningState,
    choose_reasoning_format,
    detect_reasoning_format,
)
from support_services import AsciiTokenizer
from support_shares import for_each

OPEN, ENDED, NOT_STARTED = ReasoningState.OPEN, ReasoningState.ENDED, ReasoningState.NOT_STARTED


@for_each(("template", "name"), [
    ("{{ content.split('</think>')[-1] }}", "qwen3"),
    ("{{ '<|start|>assistant<|channel|>final<|message|>' }} </think>", "openai_gptoss"),
    ("write 'Here is my response:' after it", "granite"),
    ("[THINK]{{ m }}[/THINK]", "mistral"),
    ("<seed:think></seed:think>", "seed_oss"),
    ("<|START_THINKING|><|END_THINKING|>", "command_a"),
    ("{{ text.split('<channel|>') }}", "gemma4"),
    ("thoughts in <think></think>, the answer in <response></response>", "granite33"),
    ("{{ messages }} <think>", None),
])  # fmt: skip
def test_a_template_tells_the_format(template: str, name: str | None) -> None:
    found = detect_reasoning_format(template)
    assert (None if found is None else found.name) == name == _name(choose_reasoning_format("auto", template))


def _name(found: object) -> object:
    return getattr(found, "name", None)


def test_the_operator_may_name_the_format() -> None:
    for name in REASONING_PARSERS[2:]:
        assert _name(choose_reasoning_format(name, "")) == name
    assert choose_reasoning_format("none", "</think>") is None
    with pytest.raises(ConfigError, match=r"reasoning_parser must be one of auto, none, qwen3, .* got 'qwen9'"):
        choose_reasoning_format("qwen9", "")


@for_each(("prompt", "state"), [
    ("<|user|>hi<|assistant|>\n", NOT_STARTED),
    ("<|user|>hi<|assistant|>\n<think>\n", OPEN),
    ("<|user|>hi<|assistant|><think>", OPEN),
    ("<|user|>hi<|assistant|>\n<think>\n\n</think>\n\n", ENDED),
    ("<|user|>hi<|assistant|></think>", ENDED),
    ("<|user|>what is <think>?<|end|><|assistant|>", NOT_STARTED),
])  # fmt: skip
def test_the_generation_prompt_may_open_or_end_the_reasoning(prompt: str, state: ReasoningState) -> None:
    assert THINK_TAGS.state_after(prompt) is state


def test_harmony_has_its_own_generation_prompt() -> None:
    prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant"
    assert HARMONY.state_after(prompt) is NOT_STARTED
    assert HARMONY.state_after(prompt + "<|channel|>analysis<|message|>") is OPEN
    assert HARMONY.state_after(prompt + "<|channel|>final<|message|>") is ENDED


@for_each(("before", "text", "state"), [
    ("<|assistant|>", "<think>\nOkay, so", OPEN),
    ("<|assistant|><think>\n", "Okay, so", OPEN),
    ("<|assistant|><think>\n", "Okay.</think>So", ENDED),
    ("<|assistant|>", "<think>Okay.</think>", ENDED),
    ("<|assistant|>", "The answer is", ENDED),
    ("<|assistant|>\n<think>\n\n</think>\n\n", "The answer is", ENDED),
    ("<|assistant|>", " ", NOT_STARTED),
    ("<|assistant|><think>", "", OPEN),
])  # fmt: skip
def test_a_continued_answer_may_be_within_its_reasoning(before: str, text: str, state: ReasoningState) -> None:
    assert THINK_TAGS.state_after(before + text, continued_text=text) is state


def test_a_structured_output_may_have_reasoning_before_it_unless_that_has_ended() -> None:
    assert THINK_TAGS.prefix_of(ENDED) is None
    assert THINK_TAGS.prefix_of(OPEN) == ReasoningPrefix(starts=("<think>",), ends=("</think>",), is_open=True)
    prefix = HARMONY.prefix_of(NOT_STARTED)
    assert prefix is not None and not prefix.is_open and prefix.answer_start == "<|channel|>final<|message|>"


def test_markers_that_are_special_tokens_are_known() -> None:
    assert REASONING_FORMATS["mistral"].uses_any({"[THINK]", "</s>"})
    assert not THINK_TAGS.uses_any({"<|im_end|>"}) and HARMONY.uses_any({"<|channel|>"})


@for_each(("template", "prompt", "name"), [
    ("{{ messages }}<think>", "Hello <|assistant|>\n<think>\n", "qwen3"),
    ("{{ messages }}[THINK]", "Hello [/INST][THINK]", "mistral"),
    ("{{ messages }}<think>", "Hello <think> <|assistant|>", None),
    ("{{ messages }}", "Hello <think>", None),
])  # fmt: skip
def test_a_prompt_that_begins_the_reasoning_tells_the_format(template: str, prompt: str, name: str | None) -> None:
    """Olmo 3 Think's template never names the end of the reasoning."""
    assert _name(detect_reasoning_format(template, lambda: prompt)) == name


def test_the_prompt_is_not_rendered_where_the_template_tells_the_format() -> None:
    for template in ("</think>", "no reasoning"):
        assert _name(detect_reasoning_format(template, lambda: 1 // 0)) == ("qwen3" if "think" in template else None)


def test_a_template_of_olmo_3_think() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|a|><think>{% endif %}"
    for text, name in ((source, "qwen3"), (source.replace("<think>", ""), None)):
        assert _name(ChatTemplate({"default": text}, AsciiTokenizer()).reasoning_format) == name
    rejecting = source + "<think>{{ raise_exception('no') }}"
    assert ChatTemplate({"default": rejecting}, AsciiTokenizer()).reasoning_format is None


def test_the_prompt_of_gemma_4_ends_the_reasoning_where_it_is_off() -> None:
    prompt = "<|turn>user\nhi<turn|>\n<|turn>model\n"
    assert REASONING_FORMATS["gemma4"].state_after(prompt) is NOT_STARTED
    assert REASONING_FORMATS["gemma4"].state_after(prompt + "<|channel>thought\n<channel|>") is ENDED
    assert REASONING_FORMATS["gemma4"].state_after(prompt + "<|channel>thought\n") is OPEN
