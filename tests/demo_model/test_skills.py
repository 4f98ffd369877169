"""Skills: answers are correct by an independent computation, and copied values occur in the prompt."""

import datetime
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest

from demo_model.fact_tables import DAYS, MONTHS, NUMBERS
from demo_model.skills import json_extraction, knowledge, memory, stories, sums_and_dates, tool_calls, word_tasks
from demo_model.task import Skill, Task, asked_politely, numbers_in

MONTH_NAMES = list(MONTHS)


def drawn(skill: Skill, count: int = 1_000) -> Iterator[tuple[str, str, Task]]:
    """Yield what is asked last, the answer, and all of the task."""
    rng = Random(f"test {skill.__name__}")
    for _ in range(count):
        task = skill(rng)
        yield str(task.messages[-1]["content"]), task.answer, task


def test_sums_are_right_and_are_those_that_were_asked_for() -> None:
    for asked, answer, _ in drawn(sums_and_dates.total):
        a, sign, b, result = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (-?\d+)", answer).groups()  # type: ignore[union-attr]
        assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(result)
        named = [NUMBERS.index(word) for word in re.findall(r"[a-z]+", asked) if word in NUMBERS]
        assert (numbers_in(asked.replace("-", " ")) or named) == [int(a), int(b)]


def test_what_is_sorted_is_in_order_and_the_same() -> None:
    for asked, answer, _ in drawn(word_tasks.sort):
        parts = answer.split(", ")
        if parts[0].isdigit():
            down = "large to small" in asked or "largest" in asked
            assert list(map(int, parts)) == sorted(numbers_in(asked), reverse=down)
        else:
            assert parts == sorted(parts) and set(parts) <= set(re.findall(r"[A-Za-z]+", asked))


def test_letters_are_spelled_reversed_and_counted() -> None:
    for asked, answer, _ in drawn(word_tasks.spell):
        assert answer.replace("-", "") in asked.lower() and all(len(part) == 1 for part in answer.split("-"))
    for asked, answer, _ in drawn(word_tasks.reverse):
        if ": " in answer:
            spelled, word = answer.split(": ")
            assert spelled.replace("-", "") == word and word[::-1] in asked
        else:
            assert " ".join(reversed(answer.split(" "))) in asked
    for asked, answer, _ in drawn(word_tasks.count):
        if "letters" in answer:
            spelled, number = answer.split(": ")
            assert len(spelled.split("-")) == numbers_in(number)[0] and spelled.replace("-", "") in asked
        elif "word" in answer:
            words, _, number = answer.rpartition(": ")
            assert words.split(", ") == asked.partition(": ")[2].split() and numbers_in(number) == [
                words.count(",") + 1
            ]
        else:
            counted = numbers_in(answer)
            assert [counted[0], counted[-1]] == numbers_in(asked)
            assert all(abs(a - b) == 1 for a, b in pairwise(counted))


@pytest.mark.parametrize("skill", [word_tasks.echo, word_tasks.copy, word_tasks.drill])
def test_what_is_said_again_stands_in_what_was_said(skill: Skill) -> None:
    assert all(asked.rstrip("\"'").endswith(answer) for asked, answer, _ in drawn(skill))


def test_days_and_months_follow_each_other_as_in_the_calendar() -> None:
    for asked, answer, task in drawn(sums_and_dates.date):
        step = -1 if "before" in asked else 1
        days = [day for day in DAYS if day.lower() in asked.lower()]
        months = [month for month in MONTHS if month.lower() in asked.lower()]
        if days:
            found = re.search(r"in (\S+) days|(\S+) days after", asked)
            word = "" if found is None else found[1] or found[2]
            count = step if not word else int(word) if word.isdigit() else NUMBERS.index(word)
            wanted = f"{DAYS[(DAYS.index(days[0]) + count) % 7]}."
            assert answer.endswith(wanted) and task.is_right(wanted)
        elif "days" in answer:
            month = MONTH_NAMES.index(months[0]) + 1
            following = datetime.date(2023 + month // 12, month % 12 + 1, 1)
            assert numbers_in(answer) == [(following - datetime.date(2023, month, 1)).days]
        elif months and numbers_in(asked):
            date = datetime.date(2023, MONTH_NAMES.index(months[0]) + 1, numbers_in(asked)[0])
            date += datetime.timedelta(step)
            assert answer == f"{date.day} {MONTH_NAMES[date.month - 1]}."
        elif months:
            assert answer == f"{MONTH_NAMES[(MONTH_NAMES.index(months[0]) + step) % 12]}."
        else:
            assert answer.rstrip(".") in MONTHS


def test_every_value_of_a_form_stands_in_the_text_and_the_keys_are_those_asked_for() -> None:
    for asked, answer, task in drawn(json_extraction.filling):
        filled = json.loads(answer)
        assert all(str(value) in asked and key in asked for key, value in filled.items())
        assert task.is_right(json.dumps(filled, indent=2))
        assert not task.is_right(json.dumps({**filled, next(iter(filled)): "other"}))
        assert not task.is_right(answer[:-1])


def test_every_argument_of_a_call_stands_in_what_was_said() -> None:
    for asked, answer, task in drawn(tool_calls.calling):
        call = json.loads(answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        for value in call["arguments"].values():
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            assert shown.lower() in asked.lower()
        assert not task.is_right(json.dumps(call)), "without its marks it is no call"
        assert not task.is_right(answer.replace(call["name"], "another"))
    for asked, answer, task in drawn(tool_calls.telling):
        assert task.messages[-1]["role"] == "tool" and asked in answer


def test_what_is_remembered_was_said() -> None:
    for _, answer, task in drawn(memory.remembering):
        said = " ".join(str(message["content"]) for message in task.messages[:-1] if message["role"] == "user")
        told = answer.removesuffix(".").removeprefix("You are a ").removeprefix("You are an ").split(" is ")[-1]
        assert told.split()[-1].lower() in said.lower()


def test_lists_and_stories_are_judged_by_what_they_hold() -> None:
    for _, answer, task in drawn(knowledge.listing, 300):
        things = answer.split(", ")
        assert task.is_right(", ".join(reversed(things))) and not task.is_right(", ".join(things[1:]))
        assert not task.is_right(", ".join([*things[1:], "nonsense"])) and not task.is_right(f"{answer}, {things[0]}")
    for _, answer, task in drawn(stories.story, 300):
        assert len(answer.split()) <= stories.MAX_WORDS
        assert not task.is_right("Once upon a time. There was. Nothing.") and not task.is_right(answer[:-1])


def test_plain_text_is_there_too() -> None:
    rng = Random(1)
    assert all(knowledge.plain(rng).endswith(".") and stories.plain(rng).endswith(".") for _ in range(50))


def test_politeness_changes_no_word_of_a_question() -> None:
    rng = Random(4)
    for _ in range(300):
        made = asked_politely(rng, "I am what", "?")
        assert "am what" in made and made[:1].strip()
