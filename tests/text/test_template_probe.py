"""probe_template: abilities are those that renderings show, for templates of well-known models and for small ones."""

from dataclasses import fields
from typing import Any

import pytest

from chairlift.text.call_text_place import TextPlace
from chairlift.text.template_abilities import TemplateAbilities
from support_chat_templates import chat_template, template_of
from support_shares import for_each

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)
FIRST_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role[:4] }}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
AT_THE_FRONT = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
)
CALLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}%s{% endfor %}"
    "{% endfor %}"
)


def abilities(source: str, *, with_tools: bool = False) -> TemplateAbilities:
    return chat_template(source).abilities(with_tools=with_tools)


def differing(found: TemplateAbilities, expected: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(found, name) for name, value in expected.items() if getattr(found, name) != value}


@for_each(
    ("source", "expected"),
    [
        (CHATML, {"system": True, "developer": False, "later_system": True, "later_developer": False,
                  "repeated_users": True, "repeated_answers": True, "first_answer": True, "lone_answers": True,
                  "empty_answers": True, "calls": False, "users_after_results": False, "lone_instructions": True,
                  "other_roles": ("context", "environment", "function", "ipython", "model")}),
        (CHATML.replace("<{{ m.role }}>", "<{{ 'boss' if m.role == 'developer' else m.role }}>"),
         {"system": True, "developer": True, "later_developer": True}),
        (ALTERNATING, {"system": False, "developer": False, "later_system": False, "repeated_users": False,
                       "repeated_answers": False, "first_answer": False, "lone_answers": False,
                       "lone_instructions": False}),
        (FIRST_SYSTEM, {"system": True, "later_system": False, "repeated_users": True}),
        ("{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no user') }}"
         "{% endif %}" + CHATML, {"first_answer": True, "lone_answers": False, "lone_instructions": False}),
        (AT_THE_FRONT, {"system": True, "later_system": False, "repeated_users": True}),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML,
         {"system": False, "lone_instructions": False, "later_system": False}),
        ("{{ messages[-1].content }}", {"system": False, "repeated_users": False, "empty_answers": False}),
        ("{% for m in messages if m.content %}{{ m.content }}{% else %}{{ raise_exception('x') }}{% endfor %}",
         {"system": True, "empty_answers": True}),
        ("{% for m in messages %}{% if not m.content %}{{ raise_exception('empty') }}{% endif %}{{ m.content }}"
         "{% endfor %}", {"empty_answers": False, "repeated_answers": True}),
    ],
)  # fmt: skip
def test_roles_and_their_order(source: str, expected: dict[str, Any]) -> None:
    assert not differing(abilities(source), expected)


@for_each(
    ("written", "expected"),
    [
        ("{{ c.function.arguments | tojson }}", {"calls": True, "object_arguments": True, "text_arguments": False}),
        ("{{ c.function.arguments }}", {"calls": True, "object_arguments": True, "text_arguments": True}),
        ("{{ '' + c.function.arguments }}", {"calls": True, "object_arguments": False, "text_arguments": True}),
        ("{% for k, v in c.function.arguments.items() %}{{ v }}{% endfor %}",
         {"calls": True, "object_arguments": True, "text_arguments": False}),
        ("", {"calls": False, "object_arguments": False, "text_arguments": False, "several_calls": False}),
        ("{{ c.function.arguments | tojson }}{% if not loop.last %}{{ raise_exception('one') }}{% endif %}",
         {"calls": True, "several_calls": False}),
    ],
)  # fmt: skip
def test_calls(written: str, expected: dict[str, Any]) -> None:
    found = abilities(CALLS.replace("%s", written))
    assert not differing(found, expected)
    places = {getattr(found, name) for name in ("open_text", "closed_text", "open_text_with_reasoning")}
    assert places == {TextPlace.BESIDE if expected["calls"] else TextPlace.BEFORE}


@for_each(
    ("text", "place"),
    [
        ("{% if not m.tool_calls %}{{ m.content }}{% endif %}", TextPlace.ANSWER),
        ("{% if not m.tool_calls %}{{ m.content }}{% endif %}{{ m.tool_plan }}", TextPlace.PLAN),
        ("{% if not m.tool_calls %}{{ m.content }}{% endif %}{{ m.thinking }}", TextPlace.REASONING),
        ("{% if not m.tool_calls and m.role == 'assistant' and not loop.last and not messages[loop.index0 + 1].role == "
         "'user' %}{{ raise_exception('in a row') }}{% endif %}{% if not m.tool_calls %}{{ m.content }}{% endif %}",
         TextPlace.BEFORE),
    ],
)  # fmt: skip
def test_the_place_of_a_text_beside_a_call(text: str, place: TextPlace) -> None:
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
    found = abilities(f"{{% for m in messages %}}{text}{calls}{{% endfor %}}")
    assert found.open_text is found.closed_text is place


def test_tools() -> None:
    for source, tools, bare in (
        ("{{ tools | tojson }}", True, True),
        ("{% for t in tools %}{{ t.function.name + t.function.description }}{% endfor %}", True, False),
        ("{{ messages[0].tools }}{{ 'tools' }}", False, False),
        ("{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}", True, True),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}", False, False),
    ):
        found = abilities(source + CHATML, with_tools=True)
        assert (found.tools, found.bare_tools) == (tools, bare), source
        assert not abilities(source + CHATML).tools


def test_a_template_that_rejects_everything_has_no_ability() -> None:
    found = abilities("{{ raise_exception('no') }}", with_tools=True)
    assert {getattr(found, field.name) for field in fields(found)} == {False, (), TextPlace.BEFORE}


def test_templates_of_well_known_models() -> None:
    gpt_oss = template_of("gpt-oss").abilities(with_tools=True)
    assert (gpt_oss.developer, gpt_oss.later_system, gpt_oss.several_calls, gpt_oss.bare_tools) == (True, *[False] * 3)
    assert gpt_oss.open_text_with_reasoning is TextPlace.REASONING and gpt_oss.closed_text is TextPlace.ANSWER
    mistral = template_of("mistral").abilities(with_tools=True)
    assert not (mistral.later_system or mistral.repeated_users or mistral.users_after_results)
    assert mistral.open_text is TextPlace.BEFORE and mistral.calls and mistral.several_calls
    assert not template_of("command-r").abilities(with_tools=False).calls
    assert template_of("command-r").abilities(with_tools=True).calls
    assert not template_of("deepseek-r1-distill").abilities(with_tools=True).later_system, "it moves them to the front"


@pytest.mark.parametrize("name", ["qwen-2.5", "qwen-3"])
def test_a_template_with_few_limits(name: str) -> None:
    found = template_of(name).abilities(with_tools=True)
    expected = TemplateAbilities(developer=False, later_developer=False, text_arguments=name == "qwen-3")
    assert found == expected


@for_each(
    ("source", "expected"),
    [
        (CHATML, {"calls": False, "results": False, "users_after_results": False}),
        (CHATML.replace("{{ m.content }}", "{{ '[' + m.content + ']' if m.role == 'tool' else m.content }}"),
         {"calls": False, "results": True, "users_after_results": True}),
        (CALLS.replace("%s", "{{ c.function.arguments }}"), {"calls": True, "results": True}),
        (CHATML + "{{ tools | tojson if tools }}", {"calls": False, "results": True, "users_after_results": True}),
    ],
)  # fmt: skip
def test_results_where_no_calls_are_written(source: str, expected: dict[str, Any]) -> None:
    assert not differing(abilities(source), expected)


IN_PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ p.text if p.type == 'text' else '<t>' + p.thinking + '</t>' }}{% endfor %}{% endif %}{% endfor %}"
)


@for_each(
    ("source", "expected"),
    [
        (IN_PARTS, True), (IN_PARTS + "{{ messages[1].reasoning_content }}", False), (CHATML, False),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", False),
        ("{% for m in messages %}{{ m.content.strip() }}{% endfor %}", False),
        (IN_PARTS.replace("'<t>' + p.thinking + '</t>'", "''"), False),
    ],
)  # fmt: skip
def test_reasoning_in_parts(source: str, expected: bool) -> None:
    assert abilities(source).reasoning_parts is expected


def test_a_text_beside_a_call_does_not_end_the_turn_behind_its_result() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
        "{% if not m.tool_calls %}{{ m.content }}{% endif %}{% if m.role == 'tool' %}"
        "{{ messages[loop.index0 - 1].content }}{% endif %}{% endfor %}"
    )
    found = abilities(source)
    assert found.calls and found.closed_text is TextPlace.BESIDE and found.open_text is TextPlace.ANSWER
