"""`chairlift top`: a live table of a server's replicas, their requests, tokens a second and caches."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

from chairlift.cli.client_tls import tls_context
from chairlift.cli.escape_control_chars import escape_line
from chairlift.cli.server_load_reader import DOWN, FleetReader, FleetReading, FleetRow
from chairlift.cli.settings.resolve_settings import process_environment
from chairlift.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {"ready": "green", "healthy": "green", "slow_start": "yellow", "starting": "yellow", "draining": "yellow"}
"""Colour of each state; any other is red."""


def run(arguments: argparse.Namespace) -> int:
    """Read the server at each interval and show it; returns the exit code, 1 if --once finds it down.

    Raises ConfigError and FleetAccessDenied.
    """
    if not 0.1 <= arguments.interval <= 3600:
        raise ConfigError(f"--interval must be from 0.1 to 3600 seconds, got {arguments.interval:g}", option="interval")
    environ = process_environment()
    api_key, admin_key = (environ.get(name, "") for name in ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY"))
    tls = tls_context(arguments.tls_ca, arguments.tls_client_cert, arguments.tls_client_key)
    reader = FleetReader(arguments.url, api_key, admin_key, tls)
    if not arguments.json:
        require_rich()
    try:
        if arguments.once:
            return _show_once(reader, arguments)
        with _interrupt_flag() as interrupted:
            if arguments.json:
                _repeat(reader, arguments.interval, _print_json, interrupted)
            else:
                _show_live(reader, arguments.interval, interrupted)
    except KeyboardInterrupt:
        return 0
    return 0


def require_rich() -> None:
    """Raise ConfigError if the library rich is not installed."""
    try:
        import rich.live  # noqa: F401
    except ImportError:
        raise ConfigError("chairlift top needs rich: pip install 'chairlift[top]', or use --json") from None


def _show_once(reader: FleetReader, arguments: argparse.Namespace) -> int:
    """Print one reading, with the rates of one interval."""
    reading = reader.read()
    if reading.service != DOWN:
        time.sleep(arguments.interval)
        reading = reader.read()
    if arguments.json:
        _print_json(reading)
    else:
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 160).print(table_of(reading))
    return 1 if reading.service == DOWN else 0


@contextmanager
def _interrupt_flag() -> Iterator[Event]:
    """Set the flag that is yielded at Ctrl-C, beside the KeyboardInterrupt: Python drops one in a destructor."""
    interrupted = Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _show_live(reader: FleetReader, interval: float, interrupted: Event) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        _repeat(reader, interval, lambda reading: live.update(table_of(reading), refresh=True), interrupted)


def _repeat(reader: FleetReader, interval: float, show: Callable[[FleetReading], Any], interrupted: Event) -> None:
    """Show a reading at each interval, until the flag is set."""
    next_at = time.monotonic()
    while not interrupted.is_set():
        show(reader.read())
        next_at = max(next_at + interval, time.monotonic())
        time.sleep(next_at - time.monotonic() if next_at > time.monotonic() else 0)


def _print_json(reading: FleetReading) -> None:
    print(json.dumps(reading.as_json()), flush=True)


def table_of(reading: FleetReading) -> "Table":
    """Return the table of a reading."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title_of(reading)), title_justify="left")
    for name in ("replica", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("weight", "open", "running", "waiting", "tokens/s", "cache hits", "KV use", "attempts"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason")
    for row in reading.rows:
        style = STYLES.get(row.state, "red")
        first, state, *others = cells_of(row)
        table.add_row(Text(first), Text(state, style=style), *map(Text, others))
    return table


def title_of(reading: FleetReading) -> str:
    """Return what the server is, with the sums of its replicas."""
    if reading.service == DOWN:
        return escape_line(f"{reading.url} is down: {reading.error}")
    parts = [f"{reading.service} {reading.url}"]
    if reading.service == "router":
        num_ready = sum(STYLES.get(row.state) == "green" for row in reading.rows)
        parts.append(f"{num_ready} of {len(reading.rows)} replicas ready")
    parts.append(f"{_text(reading.tokens_per_second, '.1f')} tokens/s")
    if (attempts := reading.metrics.get("router_attempts")) is not None:
        parts.append(f"{attempts:,.0f} attempts")
    return escape_line(" · ".join(parts))


def cells_of(row: FleetRow) -> list[str]:
    """Return the cells of a replica; - is a value that is not known."""
    cells = [
        row.replica, row.state, _text(row.weight, "g"), _text(row.open_requests, ",.0f"), _text(row.running, ",.0f"),
        _text(row.waiting, ",.0f"), _text(row.tokens_per_second, ".1f"), _text(row.cache_hit_ratio, ".0%"),
        _text(row.kv_usage_ratio, ".0%"), _text(row.attempts, ",.0f"), row.reason,
    ]  # fmt: skip
    return [escape_line(cell) for cell in cells]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
