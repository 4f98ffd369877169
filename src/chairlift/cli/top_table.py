"""top_lines: lays out a reading of `chairlift top` for the width and height of a terminal."""

import textwrap
from collections.abc import Sequence

from chairlift.cli.escape_control_chars import escape_line
from chairlift.cli.server_load_reader import DOWN, FleetReading, FleetRow
from chairlift.cli.text_width import cut, padded, text_width

COLORS = {"ready": 32, "healthy": 32, "slow_start": 33, "starting": 33, "draining": 33}
"""SGR code of each state's colour: green, yellow; any other state is red."""

GREEN, RED = 32, 31
COLUMNS = (
    ("replica", "replica"), ("state", "state"), ("weight", "weight"), ("open", "open"), ("running", "run"),
    ("waiting", "wait"), ("tokens/s", "tok/s"), ("cache hits", "hits"), ("KV use", "KV"), ("attempts", "attempts"),
)  # fmt: skip
"""Heading of each column, and its heading in a narrow terminal."""

STATE = 1
LEAST_USED_FIRST = (2, 9, 3, 7, 8, 6, 5, 4)
"""Columns in the order in which a narrow terminal leaves them out; replica and state stay."""

GAP = "  "
MIN_REPLICA_CHARS, MAX_STATE_CHARS, MIN_REASON_CHARS = 12, 16, 24
CUT_REPLICA_CHARS = 24
"""Characters to which longer names of replicas are cut before a column is left out."""


def top_lines(reading: FleetReading, columns: int, lines: int | None = None, *, is_colored: bool = False) -> list[str]:
    """Return the title and the table of a reading, at most `columns` wide and `lines` high.

    A narrow terminal has fewer columns. A low one has the replicas with problems first, and how many are left out.
    """
    title = [cut(line, columns) for line in textwrap.wrap(title_of(reading), columns)]
    if reading.service == DOWN:
        return title[:lines]
    rows = list(reading.rows)
    reasons = [] if _reason_room(rows, columns) else _reason_lines(rows, columns)
    if lines is not None and len(title) + 1 + len(rows) + len(reasons) > lines:
        rows.sort(key=lambda row: COLORS.get(row.state) == GREEN)
        room = max(0, lines - len(title) - 1)
        reasons = reasons[: max(room // 3, room - len(rows))]
        room -= len(reasons)
        rows = rows if len(rows) <= room else rows[: max(0, room - 1)]
    num_hidden = len(reading.rows) - len(rows)
    hidden = [f"{num_hidden} more replicas" if num_hidden > 1 else "1 more replica"] if num_hidden else []
    return [*title, *_table_lines(rows, columns, is_colored=is_colored), *hidden, *reasons][:lines]


def title_of(reading: FleetReading) -> str:
    """Return what the server is, with the sums of its replicas."""
    if reading.service == DOWN:
        return escape_line(f"{reading.url} is down: {reading.error}")
    parts = [f"{reading.service} {reading.url}"]
    if reading.service == "router":
        num_ready = sum(COLORS.get(row.state) == GREEN for row in reading.rows)
        parts.append(f"{num_ready} of {len(reading.rows)} replicas ready")
    parts.append(f"{_text(reading.tokens_per_second, '.1f')} tokens/s")
    if (attempts := reading.metrics.get("router_attempts")) is not None:
        parts.append(f"{attempts:,.0f} attempts")
    return escape_line(" · ".join(parts))


def cells_of(row: FleetRow) -> list[str]:
    """Return the cells of a replica; - is a value that is not known."""
    cells = [
        row.replica, cut(row.state, MAX_STATE_CHARS), _text(row.weight, "g"), _text(row.open_requests, ",.0f"),
        _text(row.running, ",.0f"), _text(row.waiting, ",.0f"), _text(row.tokens_per_second, ".1f"),
        _text(row.cache_hit_ratio, ".0%"), _text(row.kv_usage_ratio, ".0%"), _text(row.attempts, ",.0f"),
    ]  # fmt: skip
    return [escape_line(cell) for cell in cells]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _table_lines(rows: Sequence[FleetRow], columns: int, *, is_colored: bool) -> list[str]:
    chosen, headings, widths = _layout(rows, columns)
    room = _reason_room(rows, columns)
    head = GAP.join(_aligned([headings[index] for index in chosen], widths)) + (f"{GAP}reason" if room else "")
    lines = [cut(head, columns)]
    for row in rows:
        cells = cells_of(row)
        cells[0] = cut(cells[0], widths[0])
        parts = _aligned([cells[index] for index in chosen], widths)
        if room:
            parts.append(cut(escape_line(row.reason), room))
        if _width(widths) > columns:  # a terminal of a few columns
            lines.append(cut(GAP.join(parts), columns))
            continue
        if is_colored:
            parts[STATE] = f"\x1b[{COLORS.get(row.state, RED)}m{parts[STATE]}\x1b[0m"
        lines.append(GAP.join(parts).rstrip())
    return lines


def _layout(rows: Sequence[FleetRow], columns: int) -> tuple[list[int], list[str], list[int]]:
    """Return the columns that fit, all headings, and the widths of the columns."""
    cells = [cells_of(row) for row in rows]
    chosen = list(range(len(COLUMNS)))
    headings = [long for long, _ in COLUMNS]
    cell_widths = [max((text_width(each[index]) for each in cells), default=0) for index in chosen]
    longest = cell_widths[0]

    def widths() -> list[int]:
        return [max(text_width(headings[index]), cell_widths[index]) for index in chosen]

    if _width(widths()) > columns:
        headings = [short for _, short in COLUMNS]
        cell_widths[0] = min(longest, CUT_REPLICA_CHARS)
    for index in LEAST_USED_FIRST:
        if _width(widths()) <= columns:
            break
        chosen.remove(index)
    room = columns - _width(widths()[1:]) - len(GAP)
    cell_widths[0] = min(longest, max(room, MIN_REPLICA_CHARS))
    return chosen, headings, widths()


def _reason_room(rows: Sequence[FleetRow], columns: int) -> int:
    """Return the width of the column of reasons; 0 where there is none, or too little room for it."""
    chosen, _, widths = _layout(rows, columns)
    room = columns - _width(widths) - len(GAP)
    longest = max((text_width(escape_line(row.reason)) for row in rows), default=0)
    has_room = len(chosen) == len(COLUMNS) and room >= min(longest, MIN_REASON_CHARS)
    return room if longest and has_room else 0


def _reason_lines(rows: Sequence[FleetRow], columns: int) -> list[str]:
    """Return a line for each reason, for a table without a column for them."""
    return [cut(escape_line(f"{row.replica}: {row.reason}"), columns) for row in rows if row.reason]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return cells as wide as their columns: the first two are on the left, numbers on the right."""
    return [
        padded(cell, width, right=number > STATE)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)
