"""The report of a soak: every finding is in the text, everything measured in the JSON, and the exit code follows."""

import json
from pathlib import Path

from soak.clients import KEPT, Tally
from soak.raw_client import End, Ending
from soak.report import draw, table, write
from soak.verdict import Finding

from .test_verdict import CHAT, course

MORE = {"seed": 7, "rate": 5.0, "capacity": 10.0, "kinds": {"chat": {"answered": 3, "429 overloaded": 1}}}


def test_the_text_says_what_was_found() -> None:
    good, bad = Finding("one thing", True, "fine"), Finding("another", False, "3 left")
    text = table(course(), [good, bad], MORE)
    assert "FAILED" in text.splitlines()[0] and "FAIL  another: 3 left" in text and "ok    one thing: fine" in text
    assert "seed 7" in text and "answered 3, 429 overloaded 1" in text
    assert "passed" in table(course(), [good], MORE).splitlines()[0]


def test_files_are_written(tmp_path: Path) -> None:
    told = course()
    text = write(tmp_path, told, [Finding("a", True, "b")], MORE)
    assert (tmp_path / "soak.txt").read_text(encoding="utf-8") == text
    found = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert len(found["samples"]) == len(told.samples) and len(found["rests"]) == len(told.rests)
    assert found["findings"] == [{"name": "a", "good": True, "said": "b"}] and found["seed"] == 7
    assert found["samples"][0]["api"]["rss"] == told.samples[0].api.rss  # type: ignore[union-attr]


def test_curves_are_drawn_where_matplotlib_is_there(tmp_path: Path) -> None:
    assert draw(tmp_path / "soak.png", course()) and (tmp_path / "soak.png").stat().st_size > 10_000


def test_only_what_is_odd_is_kept_and_bad_input_is_one_kind() -> None:
    tally = Tally()
    tally.add(CHAT, Ending(End.ANSWERED, 200, "", b"", 0.0, 1.0))
    assert not tally.odd and tally.kinds == {("chat", "answered"): 1}
    tally.add(CHAT, Ending(End.CUT, 200, "", b"", 0.0, 1.0))
    tally.add(CHAT, Ending(End.ANSWERED, 429, "overloaded", b"", 0.0, 1.0))
    tally.add(CHAT, Ending(End.ERROR_EVENT, 200, "engine_dead", b"", 0.0, 1.0))
    tally.add(CHAT, Ending(End.ANSWERED, 503, "starting", b"", 0.0, 1.0))
    assert [ending.end for _, ending in tally.odd] == [End.CUT, End.ERROR_EVENT, End.ANSWERED] and tally.total == 5
    for _ in range(KEPT):
        tally.add(CHAT, Ending(End.HUNG, 0, "", b"", 0.0, 1.0))
    assert (len(tally.odd), tally.dropped) == (KEPT, 3)
