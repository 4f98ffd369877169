"""reporting_interrupt: prints what was done when Ctrl-C ends a benchmark that has no report then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chairlift.cli.console import Console


@contextmanager
def reporting_interrupt(console: Console, describe: Callable[[], str]) -> Iterator[None]:
    """Print what was done, as `describe` says it, when Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        console.print_line(f"{describe()}; there is no report, and the next run begins anew")
        raise
