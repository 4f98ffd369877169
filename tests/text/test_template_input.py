"""template_input: nothing of a conversation is lost in any template; what a template writes itself stays as it is."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from chairlift.text.chat_messages import ChatMessages
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.marker_stand_ins import without_stand_ins
from chairlift.text.template_input import template_input
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import detect_tool_format
from chairlift.text.tool_formats.gemma import TOOL_CODE
from chairlift.text.tool_formats.generic import GENERIC
from chairlift.text.tool_formats.generic_prompt import prompt_of
from chairlift.text.tool_formats.json_calls import HERMES, MISTRAL
from chairlift.text.tool_formats.marked_calls import KIMI
from support_chat_templates import NAMES, chat_template, template_of
from support_server import open_server, run
from support_services import fake_service
from support_shares import for_each

USER = {"role": "user", "content": "Hello."}
TOOLS = [{"type": "function", "function": {"name": name}} for name in "fg"]
CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    "{% endfor %}"
)


def call(call_id: str, name: str = "f", arguments: Any = '{"x": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def shown(
    messages: list[Any], tool_format: ToolFormat = HERMES, source: str = CHATML, tools: Any = TOOLS
) -> list[dict[str, Any]]:
    before = json.dumps(messages)
    result, offered = template_input(ChatMessages.parse(messages), tools, tool_format, chat_template(source))
    assert json.dumps(messages) == before and (offered is None) == (tool_format.is_generic or not tools)
    return result


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


def test_calls_have_objects_and_a_text_and_results_have_names() -> None:
    messages = [
        USER, {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", "g")]},
        {"role": "tool", "tool_call_id": "b", "content": "5"},
        {"role": "tool", "tool_call_id": "a", "content": "6", "name": "own"},
        {"role": "assistant", "content": "So.", "tool_calls": [call("c")]},
    ]  # fmt: skip
    user, called, first, second, again = shown(messages)
    assert user == USER and called["content"] == "" and again["content"] == "So."
    assert [each["function"]["arguments"] for each in called["tool_calls"]] == [{"x": 1}, {"x": 1}]
    assert (first["name"], second["name"]) == ("g", "own")
    assert (first["tool_call_id"], second["tool_call_id"]) == ("b", "a")


def test_ids_have_the_length_that_the_template_demands() -> None:
    long, short = "call_0123456789abcdef", "0123abcde"
    messages = [USER, {"role": "assistant", "tool_calls": [call(long), call(short)]}]
    messages += [{"role": "tool", "tool_call_id": each, "content": "5"} for each in (long, short)]
    result = shown(messages, MISTRAL)
    ids = [each["id"] for each in result[1]["tool_calls"]]
    assert ids == [each["tool_call_id"] for each in result[2:]] and ids[1] == short and len(ids[0]) == 9
    assert ids[0].isalnum() and ids[0] != short and result[0] == USER
    assert shown(messages)[2]["tool_call_id"] == long


def test_ids_name_the_function_where_the_template_writes_them_in_its_place() -> None:
    messages = [
        USER, {"role": "assistant", "tool_calls": [call("a"), call("b", "g")]},
        {"role": "tool", "tool_call_id": "b", "content": "5"}, {"role": "assistant", "tool_calls": [call("c")]},
    ]  # fmt: skip
    _, called, result, again = shown(messages, KIMI)
    assert [each["id"] for each in called["tool_calls"] + again["tool_calls"]] == [
        "functions.f:0", "functions.g:1", "functions.f:2",
    ]  # fmt: skip
    assert (result["tool_call_id"], result["name"]) == ("functions.g:1", "g")


@pytest.mark.parametrize(
    ("written", "first", "cut"),
    [
        ("{{ c.function.arguments | tojson }}", {"x": 1}, {"arguments": '{"city": "Par'}),
        ("{% for k, v in c.function.arguments.items() %}{{ v }}{% endfor %}", {"x": 1}, {"arguments": '{"city": "Par'}),
        ("{{ c.function.arguments }}", {"x": 1}, '{"city": "Par'),
        ("{{ '' + c.function.arguments }}", '{"x": 1}', '{"city": "Par'),
    ],
)
def test_arguments_have_the_form_that_the_template_takes(written: str, first: Any, cut: Any) -> None:
    source = f"{PLAIN}{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{written}{{% endfor %}}{{% endfor %}}"
    source = PLAIN.replace(
        "{{ m.content }}", f"{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}{written}{{% endfor %}}"
    )
    messages = [USER, {"role": "assistant", "tool_calls": [call("b"), call("a", arguments='{"city": "Par')]}]
    [_, called] = shown(messages, source=source)
    assert [each["function"]["arguments"] for each in called["tool_calls"]] == [first, cut]


SYSTEM, DEVELOPER = ({"role": role, "content": role.upper()} for role in ("system", "developer"))
KNOWS_DEVELOPERS = "{% for m in messages %}{{ '!' if m.role == 'developer' }}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' or loop.first %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)


@for_each(
    ("source", "messages", "expected"),
    [
        (CHATML, [SYSTEM, USER], [("system", "SYSTEM"), ("user", "Hello.")]),
        (CHATML, [DEVELOPER, USER], [("system", "DEVELOPER"), ("user", "Hello.")]),
        (CHATML, [SYSTEM, DEVELOPER, USER], [("system", "SYSTEM\n\nDEVELOPER"), ("user", "Hello.")]),
        (CHATML, [USER, DEVELOPER], [("user", "Hello."), ("system", "DEVELOPER")]),
        (KNOWS_DEVELOPERS, [DEVELOPER, USER], [("developer", "DEVELOPER"), ("user", "Hello.")]),
        (KNOWS_DEVELOPERS, [DEVELOPER, SYSTEM, USER], [("developer", "DEVELOPER\n\nSYSTEM"), ("user", "Hello.")]),
        (KNOWS_DEVELOPERS, [USER, DEVELOPER], [("user", "Hello."), ("developer", "DEVELOPER")]),
        (FIRST_ONLY, [SYSTEM, USER, DEVELOPER], [("system", "SYSTEM"), ("user", "Hello."), ("user", "DEVELOPER")]),
        (NO_SYSTEM, [SYSTEM, USER], [("user", "SYSTEM\n\nHello.")]),
        (NO_SYSTEM, [SYSTEM, DEVELOPER, USER], [("user", "SYSTEM\n\nDEVELOPER\n\nHello.")]),
        (NO_SYSTEM, [SYSTEM], [("user", "SYSTEM")]),
        (NO_SYSTEM, [SYSTEM, {"role": "assistant", "content": "A"}], [("user", "SYSTEM"), ("assistant", "A")]),
    ],
)
def test_instructions(source: str, messages: list[Any], expected: list[tuple[str, str]]) -> None:
    result = shown(messages, source=source, tools=None)
    assert [(each["role"], each["content"]) for each in result] == expected


def test_a_template_without_a_format_gets_no_tools_but_a_message_about_them() -> None:
    prompt = prompt_of(TOOLS)
    assert shown([USER], GENERIC) == [{"role": "system", "content": prompt}, USER]
    assert shown([SYSTEM, USER], GENERIC)[0] == {"role": "system", "content": f"{prompt}\n\nSYSTEM"}
    assert shown([USER], GENERIC, NO_SYSTEM) == [{"role": "user", "content": f"{prompt}\n\nHello."}]
    assert shown([{"role": "assistant", "content": "A"}], GENERIC, NO_SYSTEM)[0] == {"role": "user", "content": prompt}
    assert shown([USER], GENERIC, tools=None) == [USER] == shown([USER])


def test_a_template_that_knows_no_calls_gets_calls_and_results_as_text() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": "5"},
    ]
    for tools, tool_format in ((None, GENERIC), (TOOLS, GENERIC), (None, HERMES), (TOOLS, HERMES), (TOOLS, TOOL_CODE)):
        result = shown(messages, tool_format, PLAIN, tools)[-3:]
        assert roles(result) == ["user", "assistant", "user"] and not any("tool_calls" in each for each in result)
        own = tool_format is HERMES  # it can stand in a text; that of TOOL_CODE is not known
        assert ('{"tool_calls": [{"name": "f"' in result[1]["content"]) != own
    native = shown(messages, GENERIC, tools=None)
    assert native[1]["tool_calls"] and native[2]["role"] == "tool", "a template with calls has a form of its own"


def test_the_prompt_of_a_model_without_a_format_is_tokenized_with_its_tools() -> None:
    async def scenario() -> Any:
        async with open_server(fake_service()) as server:
            return await server.http.post("/tokenize", json={"messages": [USER], "tools": TOOLS})

    tokens = run(scenario()).json()["tokens"]
    assert prompt_of(TOOLS) in bytes(tokens).decode()


def test_several_calls_are_answers_of_their_own_where_the_template_takes_one() -> None:
    check = "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') }}{% endif %}"
    source = CHATML.replace("{% endfor %}", check + "{% endfor %}")
    answer = {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "R",
        "tool_calls": [call("a"), call("b", "g")],
    }
    results = [{"role": "tool", "tool_call_id": each, "content": each} for each in "ba"]
    _, first, a, second, b, last = shown([USER, answer, *results, USER], source=source)
    assert [first["tool_calls"][0]["id"], a["content"], second["tool_calls"][0]["id"], b["content"]] == [
        "a",
        "a",
        "b",
        "b",
    ]
    assert (first["content"], second["content"], last) == ("I look.", "", USER)
    assert first["reasoning_content"] == "R" and "reasoning_content" not in second
    assert len(shown([USER, answer, *results])) == 4
    assert contents(shown([USER, {**answer, "content": ""}, results[0]], source=source)) == ["Hello.", "", "", "b"]


def test_a_text_beside_a_call_of_gpt_oss_is_reasoning_until_the_answer_has_come() -> None:
    """Our own answer, echoed: GPT-OSS's template rejects its three parts together."""
    template = template_of("gpt-oss")
    answer = {"role": "assistant", "content": "I look.", "reasoning_content": "Look it up.", "tool_calls": [call("a")]}
    parts = {**answer, "content": [{"type": "text", "text": "I look."}], "thinking": "Look it up."}
    result = {"role": "tool", "tool_call_id": "a", "content": "5"}
    for echoed in (answer, parts):
        text = rendered(template, [USER, echoed, result])
        assert "<|channel|>analysis<|message|>Look it up.\n\nI look.<|end|>" in text
        text = rendered(template, [USER, echoed, result, {"role": "assistant", "content": "It is 5."}, USER])
        assert "<|channel|>final<|message|>I look.<|end|>" in text and "Look it up." not in text


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)


@for_each(
    ("messages", "expected"),
    [
        ("uu", ["u0\n\nu1"]), ("uaau", ["u0", "a1\n\na2", "u3"]), ("au", ["", "a0", "u1"]),
        ("uasu", ["u0", "a1", "s2\n\nu3"]), ("suau", ["s0\n\nu1", "a2", "u3"]), ("us", ["u0\n\ns1"]),
        ("ussau", ["u0\n\ns1\n\ns2", "a3", "u4"]), ("uaua", ["u0", "a1", "u2", "a3"]), ("sas", ["s0", "a1", "s2"]),
    ],
)  # fmt: skip
def test_roles_alternate_where_the_template_wants_it(messages: str, expected: list[str]) -> None:
    names = {"u": "user", "a": "assistant", "s": "system"}
    sent = [{"role": names[role], "content": f"{role}{at}"} for at, role in enumerate(messages)]
    assert contents(shown(sent, source=ALTERNATING, tools=None)) == expected


def test_an_empty_answer_is_left_out_where_the_template_rejects_it() -> None:
    source = PLAIN.replace("{{ m", "{% if not m.content %}{{ raise_exception('empty') }}{% endif %}{{ m")
    sent = [USER, {"role": "assistant", "content": ""}, {"role": "user", "content": "Again."}]
    assert contents(shown(sent, source=source, tools=None)) == ["Hello.", "Again."]
    assert contents(shown(sent, tools=None)) == ["Hello.", "", "Again."]


def test_a_user_who_writes_behind_a_result() -> None:
    calling = {"role": "assistant", "tool_calls": [call("abcdefghi")]}
    result = {"role": "tool", "tool_call_id": "abcdefghi", "content": "5"}
    sent = [USER, calling, result, {"role": "user", "content": "Stop."}]
    assert "5\n\nStop." in rendered(template_of("mistral"), sent)
    assert roles(shown(sent)) == ["user", "assistant", "tool", "user"]


def test_tools_are_complete_where_the_template_needs_it_and_have_no_nulls() -> None:
    source = CHATML + "{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}"
    writes_tools = chat_template(CHATML + "{{ tools | tojson }}")
    for function in ({"name": "f"}, {"name": "f", "description": None, "parameters": None, "strict": None}):
        tools = [{"type": "function", "function": function}]
        _, bare = template_input(ChatMessages.parse([USER]), tools, HERMES, writes_tools)
        assert bare == [{"type": "function", "function": {"name": "f"}}]
        _, complete = template_input(ChatMessages.parse([USER]), tools, HERMES, chat_template(source))
        empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
        assert complete == [{"type": "function", "function": {"name": "f", **empty}}]


def rendered(template: ChatTemplate, messages: list[Any], tools: Any = TOOLS) -> str:
    tool_format = detect_tool_format(template.text, takes_tools=template.abilities(with_tools=True).tools)
    plain, offered = template_input(ChatMessages.parse(messages), tools, tool_format, template)
    return template.render_checked(plain, tools=offered).text


def random_conversation(dice: random.Random) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield messages in any order of roles, each with the markers that its texts, calls or results have."""
    for number in range(dice.randint(1, 7)):
        match dice.choice(["user", "user", "assistant", "system", "developer", "call", "call"]):
            case "call":
                ids = [f"id{number:03}{each:04}" for each in range(dice.randint(1, 3))]
                text = dice.choice(["", f"zqt{number}x"])
                calls = [call(each, arguments={"x": f"zq{each}x"}) for each in ids]
                message = {"role": "assistant", "content": text or None, "tool_calls": calls}
                if dice.random() < 0.3:
                    message["reasoning_content"] = "Hm."
                yield message, [*filter(None, [text]), *(f"zq{each}x" for each in ids)]
                dice.shuffle(ids)
                for each in ids:
                    yield {"role": "tool", "tool_call_id": each, "content": f"zqr{each}x"}, [f"zqr{each}x"]
            case role:
                yield {"role": role, "content": f"zq{number}x"}, [f"zq{number}x"]


@pytest.mark.share(10)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_conversation_is_lost_in_templates_of_well_known_models(name: str) -> None:
    for seed in range(60):
        dice = random.Random(seed)
        conversation = [*random_conversation(dice)]
        for tools in (TOOLS, None):
            text = rendered(template_of(name), [message for message, _ in conversation], tools)
            for message, markers in conversation:
                for marker in markers:
                    assert marker in text, (seed, bool(tools), message, marker, text)


LONG_ID = "call_" + "0123456789abcdef" * 2
ASKED = {"role": "user", "content": "zqu0x"}
ONE, TWO = call("zqid00001", arguments='{"x": "zqa1x"}'), call("x", "g", arguments='{"x": "zqa2x"}')
RESULTS = {each["id"]: {"role": "tool", "tool_call_id": each["id"], "content": f"zqr{at}x"}
           for at, each in enumerate([ONE, TWO])}  # fmt: skip
FIRST, SECOND = RESULTS.values()


def calling(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [*calls], **fields}


SIBLINGS: dict[str, list[dict[str, Any]]] = {
    "an empty list of calls": [ASKED, {"role": "assistant", "content": "zqb1x", "tool_calls": []}, ASKED],
    "an empty answer with an empty list": [ASKED, {"role": "assistant", "content": "", "tool_calls": []}, ASKED],
    "a null list of calls": [ASKED, {"role": "assistant", "content": "zqb1x", "tool_calls": None}],
    "a result with null": [ASKED, calling(ONE), {**FIRST, "content": None}, ASKED],
    "a result without content": [ASKED, calling(ONE), {"role": "tool", "tool_call_id": ONE["id"]}],
    "a result of no parts": [ASKED, calling(ONE), {**FIRST, "content": []}],
    "a result of parts": [ASKED, calling(ONE), {**FIRST, "content": [{"type": "text", "text": "zqr7x"}]}],
    "a long id": [ASKED, calling({**ONE, "id": LONG_ID}), {**FIRST, "tool_call_id": LONG_ID}, ASKED],
    "an empty id": [ASKED, calling({**ONE, "id": ""}), {**FIRST, "tool_call_id": ""}, ASKED],
    "an id with other letters": [ASKED, calling({**ONE, "id": "é-/ 😀"}), {**FIRST, "tool_call_id": "é-/ 😀"}],
    "the same id in two answers": [ASKED, calling(ONE), FIRST, calling({**TWO, "id": ONE["id"]}),
                                   {**SECOND, "tool_call_id": ONE["id"]}, ASKED],
    "results in another order": [ASKED, calling(ONE, TWO), SECOND, FIRST, ASKED],
    "a user between results": [ASKED, calling(ONE, TWO), FIRST, {"role": "user", "content": "zqv1x"}, SECOND, ASKED],
    "a user between call and result": [ASKED, calling(ONE), {"role": "user", "content": "zqv1x"}, FIRST],
    "a user between calls and results": [ASKED, calling(ONE, TWO), {"role": "user", "content": "zqv1x"}, FIRST, SECOND],
    "instructions between calls and results": [ASKED, calling(ONE, TWO), {"role": "system", "content": "zqs1x"},
                                               FIRST, SECOND, ASKED],
    "an answer between calls and results": [ASKED, calling(ONE, TWO), {"role": "assistant", "content": "zqb1x"},
                                            FIRST, SECOND, ASKED],
    "calls without results": [ASKED, calling(ONE, TWO), {"role": "user", "content": "zqv1x"}],
    "calls of which one has a result": [ASKED, calling(ONE, TWO), SECOND, {"role": "user", "content": "zqv1x"}],
    "calls at the end": [ASKED, calling(ONE, TWO)],
    "answers with calls in a row": [ASKED, calling(ONE), calling(TWO), FIRST, SECOND, ASKED],
    "two results of a call": [ASKED, calling(ONE), FIRST, {**FIRST, "content": "zqr8x"}, ASKED],
    "an answer to continue": [ASKED, {"role": "assistant", "content": "zqb1x"}],
    "an empty user": [{"role": "user", "content": ""}],
    "an empty user behind others": [ASKED, {"role": "assistant", "content": "zqb1x"}, {"role": "user", "content": ""}],
    "a user without parts": [{"role": "user", "content": []}, {"role": "assistant", "content": "zqb1x"}, ASKED],
    "answers alone": [{"role": "assistant", "content": "zqb1x"}],
    "calls alone": [calling(ONE), FIRST],
    "instructions alone": [{"role": "developer", "content": "zqs1x"}, {"role": "system", "content": "zqs2x"}],
    "empty instructions": [{"role": "system", "content": ""}, {"role": "developer", "content": ""}, ASKED],
    "arguments without an object": [ASKED, calling({**ONE, "function": {"name": "f", "arguments": "zqa1x"}}), FIRST],
    "no arguments": [ASKED, calling({**ONE, "function": {"name": "f"}}), FIRST],
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_of_what_clients_send_unusually(name: str) -> None:
    """The markers are in the prompt, and with tools that lack everything but their names."""
    for title, messages in SIBLINGS.items():
        markers = set(re.findall("zq[a-z][0-9]x", json.dumps(messages)))
        for tools in (TOOLS, [], None):
            text = rendered(template_of(name), messages, tools)
            assert not {marker for marker in markers if marker not in text}, (title, tools, text)


def test_calls_that_a_template_does_not_write_are_text_as_the_model_writes_it() -> None:
    wraps = "{% for m in messages %}{{ '[' + m.content + ']' if m.role == 'tool' else m.content }}{% endfor %}"
    messages = [
        USER, {"role": "assistant", "content": "So.", "tool_calls": [call("a"), call("b", "g", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "5"}, {"role": "tool", "tool_call_id": "b", "content": "6"},
        USER,
    ]  # fmt: skip
    for tools in (TOOLS, None):
        result = shown(messages, HERMES, wraps, tools)
        assert roles(result) == ["user", "assistant", "tool", "tool", "user"]
        text = without_stand_ins(result[1]["content"])
        assert text.startswith('So.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}')
        assert "tool_calls" not in result[1]
        assert contents(result)[2:] == ["5", "6", "Hello."]
    plain = shown(messages, HERMES, PLAIN)
    assert roles(plain) == ["user", "assistant", "user"] and "tool_results" in plain[2]["content"]


def test_reasoning_that_a_template_reads_from_parts_is_a_part() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ p.text if p.type == 'text' else '<t>' + p.thinking + '</t>' }}{% endfor %}{% endif %}{% endfor %}"
    )
    answer = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    result = shown([USER, answer, USER, answer], source=source, tools=None)
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}]
    assert contents(result) == ["Hello.", parts, "Hello.", "Yes."], "an output may continue the last text"
    [_, called, _] = shown([USER, {**answer, "content": ""}, USER], source=source, tools=None)
    assert called["content"] == parts[:1]
