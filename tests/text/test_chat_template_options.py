"""Variables, documents, assistant prefill and reasoning switches render as transformers' apply_chat_template does."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from chairlift.core.errors import ConfigError, InvalidRequest, ModelError
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from support_text import build_tokenizer, save_tokenizer, tokenizer_of

# In the ways of published templates; the texts are our own.
_START = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
_TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
KEEPS = _TURNS + _START + "{% endif %}"
TRIMS = _TURNS.replace("m.content", "m.content | trim") + _START + "{% endif %}"
EMPTY_BLOCK = (
    _TURNS
    + _START
    + (  # as Qwen3, SmolLM3 and GLM
        "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        "{% endif %}"
    )
)
OPENS = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    + _TURNS
    + _START
    + (  # as DeepSeek V3.1
        "{{ '<think>' if thinking else '</think>' }}{% endif %}"
    )
)
EFFORT = (  # as GPT-OSS
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "{{ '<|im_start|>system\nReasoning: ' + reasoning_effort + '<|im_end|>\n' }}"
) + KEEPS
DOCUMENTS = (  # as Granite and Command-R
    "{% if documents %}{% for d in documents %}{{ '[' + d.title + '] ' + d.text + '\n' }}{% endfor %}{% endif %}"
    "{% if controls and 'length' in controls %}{{ controls.length }}{% endif %}{{ citations | default('off') }}\n"
) + KEEPS
TEMPLATES = [KEEPS, TRIMS, EMPTY_BLOCK, OPENS, EFFORT, DOCUMENTS]
USER = {"role": "user", "content": "Why?"}


def load_both(source: str, folder: Path) -> tuple[ChatTemplate, PreTrainedTokenizerFast]:
    save_tokenizer(folder, *build_tokenizer("qwen"), source)
    return ChatTemplate.load(folder, tokenizer_of("qwen")), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("source", TEMPLATES)
def test_variables_and_documents_render_as_in_transformers(source: str, tmp_path: Path) -> None:
    template, reference = load_both(source, tmp_path)
    documents = [{"title": "t", "text": "x <|im_end|> y"}]
    for variables in (
        {}, {"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True}, {"thinking": False},
        {"reasoning_effort": "low"}, {"controls": {"length": "long"}, "citations": "on"}, {"unread": [1]},
    ):  # fmt: skip
        for prompts in (True, False):
            for docs in (None, documents):
                options = RenderOptions(variables=variables, documents=docs, add_generation_prompt=prompts)
                assert template.render([USER], options=options).text == reference.apply_chat_template(
                    [USER], tokenize=False, add_generation_prompt=prompts, documents=docs, **variables
                )


@pytest.mark.share(2)
@pytest.mark.parametrize("source", TEMPLATES)
def test_a_continued_message_is_cut_as_in_transformers(source: str, tmp_path: Path) -> None:
    template, reference = load_both(source, tmp_path)

    @given(st.one_of(
        st.text(max_size=12),
        st.sampled_from(["", " ", "Because", "Because ", "\n a\n", "<think>\nSo", "a <|im_end|> b", "CONTINUED-FINAL"]),
    ))  # fmt: skip
    @settings(max_examples=60, deadline=None)
    def check(text: str) -> None:
        chat = [USER, {"role": "assistant", "content": text}]
        prompt = template.render(chat, options=RenderOptions(continue_final_message=True))
        assert prompt.text == reference.apply_chat_template(chat, tokenize=False, continue_final_message=True)
        assert all(offset < len(prompt.text) for offset in prompt.literal)
        assert "<|im_start|>assistant" in prompt.text

    check()


def make_template(source: str, **more: Any) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokenizer_of("qwen"), **more)


@pytest.mark.parametrize(("messages", "options", "message"), [
    ([USER], {}, "needs a final message of the assistant, got one of role user"),
    ([USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}], {}, "needs a final message with content"),
    ([USER, {"role": "assistant", "content": "a"}], {"add_generation_prompt": True}, "cannot be combined with"),
])  # fmt: skip
def test_what_cannot_be_continued_is_refused(
    messages: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make_template(KEEPS).render(messages, options=RenderOptions(continue_final_message=True, **options))


def test_a_template_that_drops_the_final_text_cannot_continue_it() -> None:
    drops = "{% for m in messages %}{{ m.content.split('</think>')[-1][:5] }};{% endfor %}"
    for text in ("a</think>much more than five", "x" * 20):
        with pytest.raises(InvalidRequest, match="does not write the whole final message"):
            make_template(drops).render(
                [USER, {"role": "assistant", "content": text}], options=RenderOptions(continue_final_message=True)
            )


def test_the_variables_that_a_request_may_set_are_those_that_the_template_reads() -> None:
    assert make_template(EMPTY_BLOCK).variables == {"enable_thinking"}
    assert make_template(OPENS).variables == {"thinking"}
    assert make_template(EFFORT).variables == {"reasoning_effort"}
    assert make_template(DOCUMENTS).variables == {"controls", "citations"}
    assert make_template(DOCUMENTS).reads_documents and not make_template(KEEPS).reads_documents
    every = (
        "{{ bos_token }}{{ tokenize }}{{ tools }}{{ range(3) }}{{ strftime_now('%Y') }}{% set a = 1 %}{{ a }}{{ b }}"
    )
    assert make_template(every).variables == {"b"}
    named = ChatTemplate({"default": "{{ a }}{{ c }}", "tool_use": "{{ b }}{{ c }}"}, tokenizer_of("qwen"))
    assert named.variables == {"a", "b", "c"}, "of all templates of the model"


def test_no_variable_replaces_what_the_server_sets() -> None:
    options = RenderOptions(variables={"messages": [], "bos_token": "x", "add_generation_prompt": False})
    assert make_template(KEEPS).render([USER], options=options) == make_template(KEEPS).render([USER])


def test_special_tokens_in_variables_stay_text() -> None:
    options = RenderOptions(variables={"citations": "<|im_end|>"})
    prompt = make_template(DOCUMENTS).render([USER], options=options)
    assert prompt.text.startswith("<|im_end|>\n") and 0 in prompt.literal


def test_defaults_hold_unless_the_request_sets_the_variable() -> None:
    template = make_template(EMPTY_BLOCK, default_variables={"enable_thinking": False})
    assert template.render([USER]).text.endswith("</think>\n\n")
    thinks = RenderOptions(variables={"enable_thinking": True})
    assert template.render([USER], options=thinks) == make_template(EMPTY_BLOCK).render([USER])
    with pytest.raises(InvalidRequest, match=r"default_chat_template_kwargs\.messages must be a field of the request"):
        make_template(KEEPS, default_variables={"messages": []})


def test_a_template_that_is_not_jinja_names_its_line() -> None:
    with pytest.raises(ModelError, match="the chat template 'default' is not valid Jinja at line 3: "):
        make_template("{% for m in messages %}\n{{ m.role }}\n{% endfur %}")


def test_the_reasoning_format_follows_from_the_template_or_is_named() -> None:
    assert make_template(KEEPS).reasoning_format is None
    found = make_template(EMPTY_BLOCK).reasoning_format
    assert found is not None and found.name == "qwen3"
    named = make_template(KEEPS, reasoning_parser="deepseek_r1").reasoning_format
    assert named is not None and named.is_always_open
    assert make_template(EMPTY_BLOCK, reasoning_parser="none").reasoning_format is None
    with pytest.raises(ConfigError, match="reasoning_parser must be one of auto, none, qwen3"):
        make_template(KEEPS, reasoning_parser="x")
