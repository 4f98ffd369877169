"""Environments of the clients: made once for each list of pins, and made again when it changes."""

import sys
from pathlib import Path

import pytest

from external_suites import client_environment
from external_suites.client_environment import find_missing_node, install_node_modules, make_python


def test_an_environment_is_made_once_for_its_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []

    def fake_run(command: list[str], folder: Path) -> str:
        commands.append(command[2])
        (tmp_path / "clients").mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(client_environment, "_run", fake_run)
    pins = tmp_path / "pins.txt"
    pins.write_text("one==1\n", encoding="utf-8")
    python = make_python(pins, tmp_path / "clients")
    assert python == tmp_path / "clients" / "bin" / "python" and commands == ["venv", "pip"]
    make_python(pins, tmp_path / "clients")
    assert len(commands) == 2
    pins.write_text("one==2\n", encoding="utf-8")
    make_python(pins, tmp_path / "clients")
    assert len(commands) == 4


def test_a_failed_installation_shows_its_output_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = client_environment._run
    print_and_fail = [sys.executable, "-c", "import sys; print('no such package'); sys.exit(1)"]
    monkeypatch.setattr(client_environment, "_run", lambda command, folder: run(print_and_fail, folder))
    pins = tmp_path / "pins.txt"
    pins.write_text("none==1\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"(?s) failed:\nno such package"):
            make_python(pins, tmp_path / "clients")


def test_node_modules_are_installed_beside_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def fake_run(command: list[str], folder: Path) -> str:
        commands.append(tuple(command[:2]))
        (folder / "node_modules").mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(client_environment, "_run", fake_run)
    source, folder = tmp_path / "source", tmp_path / "node"
    source.mkdir()
    (source / "package-lock.json").write_text("{}", encoding="utf-8")
    for text in ("1", "2"):  # a changed test is copied, and nothing is installed again
        (source / "some.test.mjs").write_text(text, encoding="utf-8")
        install_node_modules(source, folder)
        assert (folder / "some.test.mjs").read_text(encoding="utf-8") == text
        assert commands == [("npm", "ci")]
    (source / "package-lock.json").write_text('{"lockfileVersion": 3}', encoding="utf-8")
    install_node_modules(source, folder)
    assert len(commands) == 2


def test_packages_without_a_lock_file_are_installed_by_their_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    def fake_run(command: list[str], folder: Path) -> str:
        commands.append(tuple(command[:2]))
        (folder / "node_modules").mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(client_environment, "_run", fake_run)
    source = tmp_path / "source"
    source.mkdir()
    for version in ("1", "1", "2"):
        (source / "package.json").write_text(f'{{"dependencies": {{"a": "{version}"}}}}', encoding="utf-8")
        install_node_modules(source, tmp_path / "agents")
    assert commands == [("npm", "install")] * 2


def test_an_old_node_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\necho v18.19.0\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_missing_node() == "node is v18.19.0, version 20 or later is needed"
    (tmp_path / "node").write_text("#!/bin/sh\necho v22.1.0\n", encoding="utf-8")
    assert find_missing_node() is None
