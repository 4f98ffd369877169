"""read_arrivals: reads times and lengths of real requests from a public trace, a CSV or JSONL file.

It knows the columns of these traces, by their names in any case:

    at, prompt_tokens, output_tokens                    seconds
    TIMESTAMP, ContextTokens, GeneratedTokens           Azure's LLM inference traces; dates
    Timestamp, Request tokens, Response tokens          BurstGPT; seconds
    timestamp, input_length, output_length              Mooncake (JSONL); milliseconds

Requests without output count as one token. Time begins with the first request.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals
from chairlift.bench.workload.json_lines import read_lines, read_objects
from chairlift.core.errors import InvalidRequest

MAX_TOKENS = 10_000_000
"""Largest length of a prompt or output; a larger one is an error of the file."""


@dataclass(frozen=True, slots=True)
class _Columns:
    at: str
    prompt_tokens: str
    output_tokens: str
    seconds_per_unit: float = 1.0


COLUMNS = (
    _Columns("at", "prompt_tokens", "output_tokens"),
    _Columns("timestamp", "contexttokens", "generatedtokens"),
    _Columns("timestamp", "request tokens", "response tokens"),
    _Columns("timestamp", "input_length", "output_length", 1e-3),
)


def read_arrivals(path: str | Path, *, requests: int | None = None, rate: float | None = None) -> Arrivals:
    """Read a trace, at most the first `requests`; with a `rate`, stretch its times to that mean rate.

    Raises InvalidRequest naming file and line.
    """
    path = Path(path)
    rows: list[tuple[float, int, int]] = []
    columns: _Columns | None = None
    for where, entry in _entries(path):
        columns = columns or _columns_of(entry, where)
        rows.append((
            _seconds(entry, columns, where), _tokens(entry, columns.prompt_tokens, where),
            _tokens(entry, columns.output_tokens, where),
        ))  # fmt: skip
    if not rows:
        raise InvalidRequest(f"{path} has no requests")
    rows.sort(key=lambda row: row[0])
    rows = rows[:requests]
    at, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    at = at - at[0]
    seconds = float(at[-1]) * len(rows) / max(1, len(rows) - 1) or 1.0
    if rate is not None:
        factor = len(rows) / rate / seconds
        at, seconds = at * factor, seconds * factor
    return Arrivals(name=path.name, at=at, prompt_tokens=prompts, output_tokens=outputs, seconds=seconds)


def _entries(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.suffix != ".csv":
        for where, entry in read_objects(path):
            yield where, {name.lower(): value for name, value in entry.items()}
        return
    reader = csv.DictReader(read_lines(path))
    try:
        for row in reader:
            yield f"{path} line {reader.line_num}", {str(name).strip().lower(): value for name, value in row.items()}
    except csv.Error as error:
        raise InvalidRequest(f"{path} is not CSV: {error}") from None


def _columns_of(entry: Mapping[str, Any], where: str) -> _Columns:
    for columns in COLUMNS:
        if entry.keys() >= {columns.at, columns.prompt_tokens, columns.output_tokens}:
            return columns
    known = "; ".join(f"{each.at}, {each.prompt_tokens}, {each.output_tokens}" for each in COLUMNS)
    raise InvalidRequest(f"{where}: needs the columns of one of these traces: {known}")


def _seconds(entry: Mapping[str, Any], columns: _Columns, where: str) -> float:
    value = entry.get(columns.at)
    try:
        seconds = float(value) * columns.seconds_per_unit  # type: ignore[arg-type]
    except (TypeError, ValueError):
        try:
            date = datetime.fromisoformat(str(value))
        except ValueError:
            message = f"{where}: {columns.at} must be a number or a date as 2023-11-16 18:15:46.68, got {value!r}"
            raise InvalidRequest(message) from None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise InvalidRequest(f"{where}: {columns.at} must be finite, got {value!r}")
    return seconds


def _tokens(entry: Mapping[str, Any], name: str, where: str) -> int:
    value = entry.get(name)
    try:
        tokens = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidRequest(f"{where}: {name} must be a number of tokens, got {value!r}") from None
    if not 0 <= tokens <= MAX_TOKENS:
        raise InvalidRequest(f"{where}: {name} must be between 0 and {MAX_TOKENS}, got {value!r}")
    return max(1, int(tokens))
