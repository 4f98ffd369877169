"""A client runs in folders of its own against the stand-in server; its session has what it sent."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from record_clients.record_client import record_client
from record_clients.recorded_client import RecordedClient, fill, prepare_folders
from record_clients.scripted_answer import TEXT, ScriptedCall

PROGRAM = f"""\
#!{sys.executable}
import json, os, sys, urllib.request
if sys.argv[1:] == ["--version"]:
    sys.exit(print("a warning") or print("program 1.2"))
if os.environ.get("FAILS"):
    sys.exit("it failed")
for number, line in enumerate(sys.stdin):
    content = json.dumps({{"messages": [{{"role": "tool"}}] * number + [line], "tools": [{{}}], "file": sys.argv[1]}})
    url = open(os.path.join(os.environ["HOME"], "settings/url")).read() + "/v1/chat/completions"
    answer = urllib.request.urlopen(urllib.request.Request(url, content.encode()))
    message = json.load(answer)["choices"][0]["message"]
    print(message["content"], message.get("tool_calls", [{{}}])[0].get("function", {{}}).get("arguments"))
print(open("note.txt").read(), os.environ["MODEL_NAME"], os.path.exists(".git"), os.environ.get("PYTHONPATH"))
"""
CLIENT = RecordedClient(
    "fake", [["program", "{work}/note.txt"]], ["program", "--version"], {"MODEL_NAME": "{model}"},
    {"settings/url": "{url}"}, [ScriptedCall("read", {"paths": ["{work}/a"], "number": 1})], prompts=["one", "two"],
    needs_git=True,
)  # fmt: skip


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "program").write_text(PROGRAM)
    (folder / "program").chmod(0o755)
    return folder


def test_a_session_has_the_requests_of_the_client(programs: Path, tmp_path: Path) -> None:
    session: dict[str, Any] = asyncio.run(record_client(CLIENT, programs, tmp_path / "session"))
    work = tmp_path / "session" / "work"
    assert session["client"] == "fake" and session["version"] == "program 1.2"
    assert session["commands"] == [["program", "{work}/note.txt"]]
    assert session["environment"] == {"MODEL_NAME": "{model}"}
    assert [(each["path"], each["body"]["file"]) for each in session["requests"]] == [
        ("/v1/chat/completions", f"{work}/note.txt")
    ] * 2
    assert (tmp_path / "session" / "output.log").read_text().splitlines() == [
        f'None {{"paths": ["{work}/a"], "number": 1}}', f"{TEXT} None", "Lunch is at noon.",
        " recorded-model True None",
    ]  # fmt: skip


def test_the_output_of_a_client_that_fails_is_reported(programs: Path, tmp_path: Path) -> None:
    client = RecordedClient("fake", [["program"]], ["program", "--version"], {"FAILS": "1"})
    with pytest.raises(RuntimeError, match=r"program ended with status 1:\nit failed"):
        asyncio.run(record_client(client, programs, tmp_path / "session"))


def test_a_client_that_waits_is_ended(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("record_clients.record_client.CLIENT_TIMEOUT_SECONDS", 0.2)
    client = RecordedClient("fake", [["/bin/sleep", "60"]], ["/bin/sleep", "0"])
    with pytest.raises(TimeoutError):
        asyncio.run(record_client(client, programs, tmp_path / "session"))


def test_only_names_of_values_are_filled() -> None:
    assert fill('{"a": "{url}", "b": {other}}', {"url": "http://h"}) == '{"a": "http://h", "b": {other}}'


def test_settings_are_written_below_the_home_folder(tmp_path: Path) -> None:
    values = prepare_folders(CLIENT, tmp_path / "session", "http://h", tmp_path)
    assert (Path(values["home"]) / "settings" / "url").read_text() == "http://h"
    assert (Path(values["work"]) / "note.txt").read_text() == "Lunch is at noon.\n"
