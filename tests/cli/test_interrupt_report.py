"""reporting_interrupt: only Ctrl-C has the report, and goes on."""

import io

import pytest

from chairlift.cli.console import Console
from chairlift.cli.interrupt_report import reporting_interrupt


def test_only_an_interrupt_is_reported() -> None:
    file = io.StringIO()
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), reporting_interrupt(Console(file=file), lambda: "1 of 2 runs were done"):
            raise error
    assert file.getvalue() == "1 of 2 runs were done; there is no report, and the next run begins anew\n"
