"""Tests of the command line of the fleet simulation."""

from dataclasses import replace

import pytest

from fleet_simulation import __main__ as command
from fleet_simulation.conversations import SHARED


def test_the_table_has_a_line_for_each_load_and_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(command.LOADS, "shared", replace(SHARED, sessions=3))
    assert command.main(["--load", "shared", "--policy", "prefix", "random", "--replicas", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["shared", "prefix"], ["shared", "random"]]
