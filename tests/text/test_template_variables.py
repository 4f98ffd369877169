"""Template variables: those that a template reads, those that a request may set, and those of a reasoning effort."""

import pytest

from chairlift.core.chat_template_names_and_limits import MAX_VARIABLES, MAX_VARIABLES_CHARS, REASONING_EFFORTS
from chairlift.core.errors import InvalidRequest
from chairlift.text.jinja_sandbox import ChatEnvironment, TemplateLimits
from chairlift.text.template_variables import check_variables, effort_variables, find_variables, settable_variables
from support_shares import for_each


@for_each(("source", "names"), [
    ("{{ a }}", {"a"}),
    ("{% if a is defined and not a %}x{% endif %}", {"a"}),
    ("{% if not a is defined %}{% set a = false %}{% endif %}{{ a }}", {"a"}),
    ("{% set a = a | default(true) %}{{ a }}", {"a"}),
    ("{% set a = 1 %}{{ a }}", set()),
    ("{% for a in b %}{{ a }}{{ loop.index }}{% endfor %}", {"b"}),
    ("{% macro f(a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", {"b"}),
    ("{% set n = namespace(a=1) %}{{ range(3) }}{{ strftime_now('%Y') }}{{ raise_exception('x') }}", set()),
    ("{% generation %}{{ a }}{% endgeneration %}", {"a"}),
])  # fmt: skip
def test_the_variables_of_a_template_are_those_that_it_reads_before_it_sets_them(source: str, names: set[str]) -> None:
    assert find_variables(ChatEnvironment(TemplateLimits()), source + "{{ c }}") == names | {"c"}


def test_what_the_server_sets_is_not_settable() -> None:
    names = {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "image_token",
        "tokenize",
        "thinking",
    }
    assert settable_variables(names, {"image_token"}) == {"thinking"}


def test_variables_are_bounded_json() -> None:
    fits = {"x": "y" * (MAX_VARIABLES_CHARS - len('{"x": ""}'))}
    assert check_variables(fits, ()) == fits
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value, message in (
        ({"x": "y" * MAX_VARIABLES_CHARS}, f"has 65545 characters as JSON, the limit is {MAX_VARIABLES_CHARS}"),
        ({str(number): 1 for number in range(MAX_VARIABLES + 1)}, "has 65 variables, the limit is 64"),
        ({"x": float("nan")}, "must be JSON data"), ({"x": deep}, "must be JSON data"), ({"x": {1, 2}}, "must be JSON"),
        ([], "must be an object, got list"), ({"own_token": 1}, r"own_token cannot be set: the server sets it"),
        ({"tools": []}, "tools must be a field of the request itself"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest, match=message) as caught:
            check_variables(value, {"own_token"})
        assert caught.value.details["param"] == "chat_template_kwargs"


@for_each("effort", REASONING_EFFORTS)
def test_only_the_effort_none_switches_reasoning_off(effort: str) -> None:
    found = effort_variables(effort, {"enable_thinking", "thinking", "other"}, "")
    assert found == {"enable_thinking": effort != "none", "thinking": effort != "none"}


def test_an_effort_that_the_template_does_not_name_is_the_nearest() -> None:
    found = [effort_variables(effort, {"reasoning_effort"}, "")["reasoning_effort"] for effort in REASONING_EFFORTS]
    assert found == ["low", "low", "low", "medium", "high", "high", "high"]
    source = "{% if reasoning_effort == 'xhigh' %}"
    assert effort_variables("max", {"reasoning_effort"}, source) == {"reasoning_effort": "xhigh"}
    for effort in REASONING_EFFORTS:
        source = f"{{% if reasoning_effort == '{effort}' %}}"
        assert effort_variables(effort, {"reasoning_effort"}, source) == {"reasoning_effort": effort}
