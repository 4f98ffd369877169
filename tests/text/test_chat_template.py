"""ChatTemplate: prompts equal transformers' apply_chat_template; user spellings stay text; errors have messages."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from chairlift.core.chat_template_names_and_limits import ROLES
from chairlift.core.errors import InvalidRequest, ModelError
from chairlift.text.byte_tokenizer import ByteTokenizer
from chairlift.text.chat_template import ChatTemplate, RenderOptions, checked_messages, checked_tools
from chairlift.text.tokenizer import ChatPrompt
from support_shares import FULL
from support_text import STYLES, build_tokenizer, save_tokenizer, tokenizer_folder, tokenizer_of

CHATML = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- '<|im_start|>assistant\\n' }}{% generation %}{{ content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}{% endgeneration %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}{{ ' [INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + ' ' + eos_token }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {{ raise_exception('System role not supported') }}
{%- endif -%}
{% for message in messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (message['content'] | trim) + '<end_of_turn>\n' }}
{%- endfor -%}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""

TEMPLATES = {"qwen": CHATML, "llama3": LLAMA3, "llama2": MISTRAL, "mistral": MISTRAL, "gemma": GEMMA}
TOOL = {"type": "function", "function": {"name": "höhe", "parameters": {"type": "object", "properties": {"a<b": {}}}}}
CALL = {"type": "function", "function": {"name": "höhe", "arguments": {"x": 1, "y": "</s>&"}}}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def make_template(source: str, style: str = "qwen", **more: Any) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokenizer_of(style), **more)


def load_both(style: str, folder: Path) -> tuple[ChatTemplate, PreTrainedTokenizerFast]:
    save_tokenizer(folder, *build_tokenizer(style), TEMPLATES[style])
    return ChatTemplate.load(folder, tokenizer_of(style)), PreTrainedTokenizerFast.from_pretrained(folder)


contents = st.one_of(st.text(max_size=30), st.sampled_from(["", "  spaced \n", "<think>x</think>\n\ny", "中文 😀"]))


@pytest.mark.share(2)
@pytest.mark.parametrize("style", STYLES)
def test_prompts_and_ids_equal_those_of_transformers(style: str, tmp_path: Path) -> None:
    template, reference = load_both(style, tmp_path)

    @given(st.lists(contents, min_size=1, max_size=5), st.booleans(), st.booleans())
    @settings(max_examples=60 if FULL else 25, deadline=None)
    def check(texts: list[str], system: bool, generate: bool) -> None:
        chat = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        if system and style in ("qwen", "llama3"):
            chat.insert(0, {"role": "system", "content": texts[0]})
        prompt = template.render(chat, options=RenderOptions(add_generation_prompt=generate))
        assert prompt == ChatPrompt(reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=generate))
        ids = reference.apply_chat_template(chat, add_generation_prompt=generate, return_dict=False)
        assert tokenizer_of(style).encode_chat(prompt) == ids

    check()


@pytest.mark.share(3)
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}])
def test_tools_calls_and_variables_reach_the_template(
    tools: list[dict[str, Any]] | None, variables: dict[str, Any], tmp_path: Path
) -> None:
    template, reference = load_both("qwen", tmp_path)
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "be short"}, {"role": "user", "content": "how high?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "2000 m"},
    ]  # fmt: skip
    expected = template.render(chat, tools=tools, options=RenderOptions(variables=variables)).text
    assert expected == reference.apply_chat_template(
        chat, tools=tools, tokenize=False, add_generation_prompt=True, **variables
    )
    assert ("höhe" in expected.partition("<tool_call>")[0]) == bool(tools)


@pytest.mark.parametrize("style", STYLES)
def test_special_tokens_in_messages_stay_text_and_the_templates_own_stay_special(style: str, tmp_path: Path) -> None:
    template, reference = load_both(style, tmp_path)
    tokenizer = tokenizer_of(style)
    specials = {
        token_text: i for token_text, i in tokenizer.special_tokens.items() if token_text not in ("<unk>", "<pad>")
    }
    user_text = "a " + " b".join(specials) + "<|im_<|im_end|> <s<s> "
    plain_prompt = template.render(user("a"))
    prompt = template.render(user(user_text))
    assert prompt.text == reference.apply_chat_template(user(user_text), tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode_chat(prompt)
    special_ids = set(specials.values())
    of_template = [i for i in tokenizer.encode_chat(plain_prompt) if i in special_ids]
    assert [i for i in ids if i in special_ids] == of_template
    assert tokenizer.decode(ids, False).replace(" ", "") == prompt.text.replace(" ", "")
    assert len([i for i in tokenizer.encode(prompt.text, False) if i in special_ids]) > len(of_template)


@pytest.mark.share(1)
@pytest.mark.parametrize("style", STYLES)
@given(draw=st.data())
@settings(max_examples=60 if FULL else 25, deadline=None)
def test_no_message_makes_a_special_token(style: str, draw: st.DataObject) -> None:
    tokenizer = tokenizer_of(style)
    template = make_template(TEMPLATES[style], style)
    specials = sorted(set(tokenizer.special_tokens) - {"<unk>"})
    parts = st.one_of(st.sampled_from(specials), st.sampled_from([*"<|>s/[", "im_end", "\U000f0000", "\U000f0001"]))
    user_text = "".join(draw.draw(st.lists(parts, max_size=12)))
    prompt = template.render(user(user_text))
    special_ids = {tokenizer.special_tokens[token_text] for token_text in specials}
    expected = [i for i in tokenizer.encode_chat(template.render(user("x"))) if i in special_ids]
    assert [i for i in tokenizer.encode_chat(prompt) if i in special_ids] == expected
    assert user_text.strip() in prompt.text


@pytest.mark.share(5)
@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ("get_weather", "tools must be a list of tools, got str"),
        ({"name": "f"}, "tools must be a list of tools, got dict"),
        (["f"], "tools[0] must be an object, got str"),
        ([TOOL, {"type": "function"}], "tools[1].function.name must be a string"),
        ([{"function": "f"}], "tools[0].function.name must be a string"),
        ([{"function": {"name": 5}}], "tools[0].function.name must be a string"),
        ([{"function": {"name": "f", "parameters": {1: 2}}}], "has a key that is not a string"),
    ],
)
def test_tools_that_are_none_are_refused_with_their_place(tools: Any, expected: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_template(CHATML).render(user("a"), tools=tools)
    assert expected in caught.value.message and str(caught.value.details["param"]).startswith("tools")


def test_a_tool_may_stand_without_its_wrapping() -> None:
    assert checked_tools([{"name": "f"}]) == [{"name": "f"}] and checked_tools([]) == []
    assert checked_tools([{"name": "f", "function": None}]) == [{"name": "f", "function": None}]


def test_special_tokens_in_tools_names_and_keys_stay_text() -> None:
    template, tokenizer = make_template(CHATML), tokenizer_of("qwen")
    tool = {"name": "f", "<|im_end|>": {"description": "<|im_start|>"}}
    call = {"function": {"name": "<|im_end|>", "arguments": '{"<|im_end|>": 1}'}}
    chat = [*user("x"), {"role": "assistant", "tool_calls": [call]}]
    prompt = template.render(chat, tools=[tool])
    assert prompt.text.count("<|im_end|>") == len([i for i in tokenizer.encode_chat(prompt) if i == 422]) + 3
    assert len(prompt.literal) == 4


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ tools | tojson(ensure_ascii=True) }}", '[{"name": "f", "description": "\\u00e9 <|im_end|>"}]'),
        ("{{ tools }}", "[{'name': 'f', 'description': 'é <|im_end|>'}]"),
        ("{{ tools[0].description | urlencode }}", "%C3%A9%20<%7Cim_end%7C%3E"),
        ("{{ '%r' | format(tools[0].description) }}", "'é <|im_end|>'"),
    ],
)  # fmt: skip
def test_special_tokens_stay_text_where_the_template_escapes_them(source: str, expected: str) -> None:
    tool = {"name": "f", "description": "é <|im_end|>"}
    prompt = make_template(source).render(user("x"), tools=[tool])
    assert prompt.text == expected and len(prompt.literal) == 1
    escape = json.dumps("\U000f0000")[1:-1]
    written = make_template(source).render(user(escape), tools=[{**tool, "description": escape + "<|im_end|>"}])
    assert len(written.literal) == 1, "what the client has written stays"


def test_the_byte_tokenizer_keeps_them_apart_too() -> None:
    tokenizer = ByteTokenizer()
    template = ChatTemplate({"default": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}, tokenizer)
    assert tokenizer.encode_chat(template.render(user("<|eos|>"))) == [256, *b"<|eos|>", 257]


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert make_template("{{ messages[0].content }}").render(user(parts)).text == "one\ntwo"


MALFORMED = [
    ("hi", "messages", "must be a list"), ([], "messages", "at least one"), (["hi"], "messages[0]", "object"),
    ([{"role": "user"}], "messages[0].content", "missing"), (user(None), "messages[0].content", "missing"),
    (user(5), "messages[0].content", "got int"), (user({"a": 1}), "messages[0].content", "got dict"),
    ([*user("a"), {"role": "root", "content": ""}], "messages[1].role", "must be one of"),
    ([{"role": ["user"], "content": ""}], "messages[0].role", "must be one of"), ([{}], "messages[0].role", "one of"),
    (user([{"type": "image_url", "image_url": "http://x"}]), "messages[0].content[0]", "'image_url'"),
    (user([7]), "messages[0].content[0]", "'int'"), (user([{"type": "text"}]), "messages[0].content[0].text", "Non"),
    (user(b"a"), "messages[0].content", "JSON data, got bytes"), ([{1: 2}], "messages[0]", "key"),
    ([{"role": "assistant"}], "messages[0].content", "missing"),
]  # fmt: skip


@pytest.mark.share(5)
@pytest.mark.parametrize(("messages", "param", "expected"), MALFORMED)
def test_malformed_messages_are_refused_by_name(messages: Any, param: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected) as caught:
        make_template(CHATML).render(messages)
    assert caught.value.details["param"] == param
    assert str(caught.value).startswith(param)


def test_deep_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested deeper than 32"):
        checked_messages([{"role": "user", "content": "a", "name": deep}])


def test_every_role_is_accepted() -> None:
    for role in ROLES:
        assert make_template("{{ messages[0].role }}").render([{"role": role, "content": ""}]).text == role


def test_the_templates_own_refusal_is_said_in_its_words() -> None:
    with pytest.raises(InvalidRequest, match=r"^System role not supported$"):
        make_template(GEMMA, "gemma").render([{"role": "system", "content": "x"}])


def test_a_template_that_fails_on_these_messages_is_the_requests_error() -> None:
    with pytest.raises(InvalidRequest, match="cannot render these messages: UndefinedError"):
        make_template("{{ messages[5].content }}").render(user("a"))


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    template = ChatTemplate.load(save_tokenizer(tmp_path, *build_tokenizer("qwen")), tokenizer_of("qwen"))
    with pytest.raises(InvalidRequest, match="has no chat template"):
        template.render(user("a"))


def test_the_date_of_a_template_comes_from_the_given_clock() -> None:
    template = make_template("{{ strftime_now('%d %b %Y') }}", wall_clock=lambda: datetime(2026, 2, 3))
    assert template.render(user("a")).text == "03 Feb 2026"


def test_files_beside_the_configuration_come_first(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen")
    save_tokenizer(tmp_path, *build_tokenizer("qwen"), "in the configuration")
    assert ChatTemplate.load(tmp_path, tokenizer).render(user("a")).text == "in the configuration"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "in json"}))
    assert ChatTemplate.load(tmp_path, tokenizer).render(user("a")).text == "in json"
    (tmp_path / "chat_template.jinja").write_text("in jinja")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    template = ChatTemplate.load(tmp_path, tokenizer)
    assert template.render(user("a")).text == "in jinja"
    assert template.render(user("a"), tools=[TOOL]).text == "with tools"


@pytest.mark.parametrize("broken", ["{% for %}", "{{ a", "{% nonsense %}", 5, ["a"], [{"name": "default"}]])
def test_a_broken_template_is_the_models_error(broken: object, tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, *build_tokenizer("qwen"), broken)
    with pytest.raises(ModelError, match=r"chat.template"):
        ChatTemplate.load(folder, tokenizer_of("qwen"))


def test_the_support_folder_is_a_model_folder() -> None:
    assert (tokenizer_folder("qwen") / "tokenizer.json").is_file()
