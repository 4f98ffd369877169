"""top_lines: what is known of each replica, in the columns that fit, in as many lines as there are."""

import re

from chairlift.cli.server_load_reader import FleetReading, FleetRow
from chairlift.cli.text_width import text_width
from chairlift.cli.top_table import cells_of, title_of, top_lines


def reading(*rows: FleetRow, service: str = "router", error: str = "") -> FleetReading:
    return FleetReading(url="http://h", at_seconds=0, service=service, rows=rows, error=error, tokens_per_second=1.25)


def row(number: int, state: str = "healthy", reason: str = "") -> FleetRow:
    return FleetRow(
        replica=f"http://replica-{number}:8000", state=state, reason=reason, weight=1.5, running=4, waiting=0,
        open_requests=2, attempts=1_000_000, tokens_per_second=12.34, cache_hit_ratio=0.456, kv_usage_ratio=1.0,
    )  # fmt: skip


def test_a_row_shows_what_is_known_and_a_dash_for_the_rest() -> None:
    assert cells_of(row(1, "eject\x1b[2Jed")) == [
        "http://replica-1:8000", "eject\N{REPLACEMENT CHARACTER}[2Jed", "1.5", "2", "4", "0", "12.3", "46%", "100%",
        "1,000,000",
    ]  # fmt: skip
    assert cells_of(FleetRow(replica="r", state="unknown")) == ["r", "unknown", *["-"] * 8]


def test_the_title_counts_the_replicas_that_are_ready() -> None:
    found = FleetReading(
        url="http://h", at_seconds=0, service="router", rows=(row(1), row(2, "ejected")),
        metrics={"router_attempts": 7}, tokens_per_second=1.25,
    )  # fmt: skip
    assert title_of(found) == "router http://h · 1 of 2 replicas ready · 1.2 tokens/s · 7 attempts"
    assert top_lines(reading(service="down", error="no route"), 80) == ["http://h is down: no route"]


def test_a_wide_terminal_has_every_column_and_the_reasons() -> None:
    _, headings, first, second = top_lines(reading(row(1), row(2, "ejected", "3 failures\x1b[2J")), 160)
    assert headings == (
        "replica                state    weight  open  running  waiting  tokens/s  cache hits  KV use   attempts"
        "  reason"
    )
    assert first == (
        "http://replica-1:8000  healthy     1.5     2        4        0      12.3         46%    100%  1,000,000"
    )
    assert second.endswith("1,000,000  3 failures\N{REPLACEMENT CHARACTER}[2J")


def test_a_narrow_terminal_leaves_out_columns_and_has_the_reasons_below() -> None:
    rows = reading(row(1), row(2, "ejected", "it has failed three times in a row, the last time with status 500"))
    headings = {columns: top_lines(rows, columns)[1].split() for columns in (80, 60, 40)}
    assert headings[80] == ["replica", "state", "open", "run", "wait", "tok/s", "hits", "KV", "attempts"]
    assert headings[60] == ["replica", "state", "run", "wait", "tok/s", "hits", "KV"]
    for columns in (120, 80, 60, 40, 24):
        lines = top_lines(rows, columns)
        assert max(map(len, lines)) <= columns and any("replica-2" in line for line in lines)
        assert columns >= 120 or lines[-1].startswith("http://replica-2:8000: "[: columns - 1])


def test_a_low_terminal_has_the_replicas_with_problems_first() -> None:
    rows = [row(number) for number in range(30)] + [row(30, "ejected", "3 failures")]
    lines = top_lines(reading(*rows), 80, 10)
    assert len(lines) == 10 and "replica-30" in lines[2] and lines[8] == "25 more replicas"
    assert lines[9] == "http://replica-30:8000: 3 failures" and top_lines(reading(row(1)), 80, 3)[-1].startswith("http")
    assert len(top_lines(reading(*rows), 80)) == 34 and len(top_lines(reading(*rows), 80, 1)) == 1


def test_states_have_colours_and_the_columns_stay() -> None:
    rows = reading(row(1), row(2, "ejected"), row(3, "draining"))
    plain, colored = top_lines(rows, 80), top_lines(rows, 80, is_colored=True)
    for line, code in zip(colored[2:], ("[32mhealthy", "[31mejected", "[33mdraining"), strict=True):
        assert code in line
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in colored] == plain


def test_names_and_states_of_any_length_and_script_fit_and_long_names_are_cut_before_columns() -> None:
    long = FleetRow(replica="http://chairlift-0." + "x" * 80, state="s" * 50, reason="\u202er\t" * 99, running=3)
    wide = FleetRow(replica="\u65e5" * 50, state="\u65e5\u672c", reason="\u8a9e" * 50, waiting=-1e20)
    for columns in (200, 80, 60, 40, 12, 5, 1):
        for rows in ((long,), (wide,), (long, wide, row(1))):
            for line in top_lines(reading(*rows), columns, is_colored=columns > 40):
                assert text_width(re.sub(r"\x1b\[\d+m", "", line)) <= columns and "\u202e" not in line
    assert top_lines(reading(long, row(1)), 80)[1].split()[2:] == ["open", "run", "wait", "tok/s", "hits", "KV"]
