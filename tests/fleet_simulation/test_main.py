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
    assert [line.split()[:3] for line in lines[1:]] == [["shared", "0.6", "prefix"], ["shared", "0.6", "random"]]


def test_the_cache_pressure_is_an_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(command.LOADS, "shared", replace(SHARED, sessions=1))
    assert command.main(["--load", "shared", "--policy", "random", "--replicas", "1", "--cache-pressure", "2.5"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1] == "2.5"
