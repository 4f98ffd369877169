"""install_services: as root only what is missing is installed, a large program only by name; a failure is no end."""

import os
import subprocess
from typing import Any

import pytest

import install_services
from install_services import PACKAGES, find_program, main


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands that would run; nothing is installed."""
    recorded: list[list[str]] = []

    def record(command: list[str], **options: Any) -> Any:
        recorded.append(command)
        raise subprocess.CalledProcessError(1, command, stderr="no network")

    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setattr(
        install_services.shutil, "which", lambda name, path="": "/x" if name in {"apt-get", "etcd"} else None
    )
    return recorded


def test_only_what_is_missing_is_installed_and_a_failure_is_no_end(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main() == 0
    missing = list(dict.fromkeys(package for program, package in PACKAGES.items() if program != "etcd"))
    assert commands[-1][-len(missing) :] == missing and "etcd-server" not in commands[-1]
    assert "apt-get install failed: no network" in capsys.readouterr().err


def test_another_user_than_root_reads_which_tests_are_skipped(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main() == 0 and commands == []
    assert "redis-server" in capsys.readouterr().err


def test_a_program_is_found_where_servers_are() -> None:
    assert find_program("sh") is not None and find_program("no-such-program") is None


def test_a_large_program_is_installed_only_if_it_is_named(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["chromium"]) == 0 and commands[-1][-1] == "chromium" and "redis-server" not in commands[-1]
    commands.clear()
    main()
    assert "chromium" not in commands[-1]
