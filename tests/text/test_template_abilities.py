"""TemplateAbilities: the forms that people see say what each ability means."""

from dataclasses import replace

import pytest

from chairlift.text.call_text_place import TextPlace
from chairlift.text.template_abilities import TemplateAbilities

ALL = TemplateAbilities()


@pytest.mark.parametrize(
    ("abilities", "part", "form"),
    [
        (ALL, "first instructions", "as system, developer"),
        (replace(ALL, system=False, developer=False), "first instructions", "before the user's first text"),
        (replace(ALL, later_developer=False), "later instructions", "as system"),
        (replace(ALL, later_system=False, later_developer=False), "later instructions", "as text of the user"),
        (ALL, "tools", "by the template"),
        (replace(ALL, tools=False), "tools", "explained in a message"),
        (replace(ALL, calls=False, results=False), "calls and results", "as text"),
        (replace(ALL, calls=False), "calls and results", "calls as text, results as the template does"),
        (replace(ALL, several_calls=False), "several calls", "in an answer each"),
        (
            replace(ALL, closed_text=TextPlace.ANSWER),
            "text beside a call",
            "beside the calls; in an answer of its own before the calls",
        ),
        (ALL, "repeated roles", "as they are: user, assistant"),
        (replace(ALL, repeated_users=False, repeated_answers=False), "repeated roles", "joined"),
    ],
)
def test_a_form(abilities: TemplateAbilities, part: str, form: str) -> None:
    assert abilities.forms()[part] == form


def test_calls_that_are_text_have_no_further_forms() -> None:
    assert ALL.forms().keys() - replace(ALL, calls=False).forms().keys() == {"several calls", "text beside a call"}


def test_json_has_every_ability_by_name() -> None:
    written = ALL.as_json()
    assert written["system"] is True and written["open_text"] == "beside the calls" and len(written) > 20


def test_the_place_of_a_text_depends_on_the_state_and_on_reasoning() -> None:
    abilities = TemplateAbilities(
        open_text=TextPlace.BESIDE, open_text_with_reasoning=TextPlace.REASONING, closed_text=TextPlace.ANSWER,
        closed_text_with_reasoning=TextPlace.BEFORE,
    )  # fmt: skip
    places = [
        abilities.text_place(is_closed=closed, has_reasoning=has) for closed in (False, True) for has in (False, True)
    ]
    assert places == [TextPlace.BESIDE, TextPlace.REASONING, TextPlace.ANSWER, TextPlace.BEFORE]
