"""StopStringMatcher: equals str.find on the whole text, however the text is split."""

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chairlift.core.sampling_params import MAX_STOP_CHARS, MAX_STOP_STRINGS
from chairlift.text.stop_strings import StopStringAutomaton, StopStringMatcher
from support_shares import FULL


def expected_cut(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Return the expected text and stop string: the stop string that ends first, then the longest one."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


def stream_cut(text: str, cuts: list[int], stops: list[str], include: bool) -> tuple[str, str | None]:
    matcher = StopStringMatcher(StopStringAutomaton(stops), include)
    emitted = ""
    for start, end in pairwise([0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]):
        delta, stop = matcher.push(text[start:end])
        emitted += delta
        if stop is not None:
            return emitted, stop
    return emitted + matcher.flush(), None


@given(
    st.text("ab", max_size=40),
    st.lists(st.integers(0, 40), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=6), max_size=5),
    st.booleans(),
)
@example("aaaaabbbabaabaaabaab", [], ["bbbabaa", "aabbab", "baba"], False)
@example("aabaab", [3], ["aabaaa", "baab"], False)
@settings(max_examples=500 if FULL else 150, deadline=None)
def test_the_text_ends_where_a_search_through_all_of_it_says(
    text: str, cuts: list[int], stops: list[str], include: bool
) -> None:
    assert stream_cut(text, cuts, stops, include) == expected_cut(text, stops, include)


@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_any_part_of_the_text_is_found_in_it(text: str, cuts: list[int], draw: st.DataObject) -> None:
    start, end = sorted(draw.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    stops = [text[start:end] or "x"]
    assert stream_cut(text, cuts, stops, False) == expected_cut(text, stops, False)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopStringMatcher(StopStringAutomaton(["\n\nUser:"]))
    assert matcher.push("Hello\n") == ("Hello", None)
    assert matcher.push("\nUs") == ("", None)
    assert matcher.push("e me") == ("\n\nUse me", None)
    assert matcher.push("\n") == ("", None)
    assert matcher.flush() == "\n"


def test_an_included_stop_string_needs_no_holding_back() -> None:
    matcher = StopStringMatcher(StopStringAutomaton(["END"]), include=True)
    assert matcher.push("the E") == ("the E", None)
    assert matcher.push("ND of it") == ("ND", "END")


@pytest.mark.parametrize(("stops", "stop", "emitted"), [(["abcd", "bc"], "bc", "a"), (["c", "abc", "bc"], "abc", "")])
def test_the_first_to_be_complete_wins_then_the_longest(stops: list[str], stop: str, emitted: str) -> None:
    assert StopStringMatcher(StopStringAutomaton(stops)).push("abcd") == (emitted, stop)


def test_without_stop_strings_everything_passes() -> None:
    matcher = StopStringMatcher(StopStringAutomaton([]))
    assert matcher.push("anything") == ("anything", None)
    assert matcher.flush() == ""


def test_nothing_may_follow_the_end() -> None:
    matcher = StopStringMatcher(StopStringAutomaton(["a"]))
    matcher.push("a")
    with pytest.raises(AssertionError, match="after the end"):
        matcher.push("b")


def test_the_worst_stop_strings_and_text_pass_in_linear_work() -> None:
    stops = ["a" * n + "b" for n in range(223, 287)]
    assert len(stops) == MAX_STOP_STRINGS and MAX_STOP_CHARS - 100 < sum(map(len, stops)) <= MAX_STOP_CHARS
    matcher = StopStringMatcher(StopStringAutomaton(stops))
    emitted = [matcher.push("a" * 50)[0] for _ in range(4000)]
    assert "".join(emitted) + matcher.flush() == "a" * 200_000
