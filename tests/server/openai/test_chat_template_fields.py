"""read_render_options: variables that the template reads are set, others are named as ignored."""

from typing import Any

from chairlift.server.openai.chat_request import read_chat
from chairlift.server.openai.chat_template_fields import read_render_options
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.tool_formats.json_calls import HERMES
from support_shares import for_each


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, ByteTokenizer())


QWEN = template("{{ messages }}{{ enable_thinking }}")
DEEPSEEK = template("{{ messages }}{{ thinking }}")
GPT_OSS = template("{{ messages }}{{ reasoning_effort }}")
NAMES_NONE = template("{{ messages }}{% if reasoning_effort == 'none' %}{% endif %}")
PLAIN = template("{{ messages }}")


@for_each(("chat_template", "effort", "variables", "ignored"), [
    (QWEN, "none", {"enable_thinking": False}, ()),
    (QWEN, "minimal", {"enable_thinking": True}, ()),
    (QWEN, "high", {"enable_thinking": True}, ()),
    (DEEPSEEK, "none", {"thinking": False}, ()),
    (DEEPSEEK, "low", {"thinking": True}, ()),
    (GPT_OSS, "none", {"reasoning_effort": "low"}, ()),
    (GPT_OSS, "minimal", {"reasoning_effort": "low"}, ()),
    (GPT_OSS, "medium", {"reasoning_effort": "medium"}, ()),
    (GPT_OSS, "xhigh", {"reasoning_effort": "high"}, ()),
    (NAMES_NONE, "none", {"reasoning_effort": "none"}, ()),
    (PLAIN, "none", {}, ("reasoning_effort",)),
    (None, "high", {}, ("reasoning_effort",)),
])  # fmt: skip
def test_the_effort_sets_what_the_template_reads(
    chat_template: ChatTemplate | None, effort: str, variables: dict[str, Any], ignored: tuple[str, ...]
) -> None:
    options, names = read_render_options({"reasoning_effort": effort}, chat_template)
    assert (options.variables, names) == (variables, ignored)


def test_variables_that_the_template_does_not_read_are_ignored_by_name() -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": False, "thinking": True, "x y": 1}}
    options, names = read_render_options(fields, QWEN)
    assert options == RenderOptions(variables={"enable_thinking": False})
    assert names == ("chat_template_kwargs.thinking", "chat_template_kwargs.x y")


def test_a_variable_takes_precedence_over_the_effort() -> None:
    fields = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}
    assert read_render_options(fields, QWEN)[0].variables == {"enable_thinking": True}


def test_documents_reach_templates_that_read_them() -> None:
    documents = [{"title": "t", "text": "x"}]
    options, names = read_render_options({"documents": documents}, template("{{ documents }}"))
    assert options.documents == documents and names == ()
    assert read_render_options({"documents": documents}, QWEN)[1] == ("documents",)


def test_a_chat_request_has_its_options() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "assistant", "content": "x"}]}
    request = read_chat({**body, "continue_final_message": True, "reasoning_effort": "low", "store": 1}, HERMES, PLAIN)
    assert request.rendering.continue_final_message and not request.rendering.has_generation_prompt
    assert request.ignored == ("store", "reasoning_effort") and request.includes_reasoning
    assert read_chat(body, HERMES).rendering.has_generation_prompt
    assert not read_chat({**body, "add_generation_prompt": False}, HERMES).rendering.has_generation_prompt
