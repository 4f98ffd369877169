"""The command writes a session of each client that it is given."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from record_clients import __main__ as command
from record_clients.clients import CLIENTS, CODEX_KNOWN_MODEL
from record_clients.recorded_client import PROMPT, RecordedClient

VALUES = {"work": "/w", "home": "/h", "url": "http://127.0.0.1:1", "prompt": PROMPT}


def test_sessions_are_written_without_prose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def record(client: RecordedClient, programs: Path, folder: Path) -> dict[str, Any]:
        assert programs == tmp_path / "programs"
        body = {"messages": [PROMPT, "This is one text of the client's own prose."]}
        request = {"method": "POST", "path": "/v1/responses", "headers": {}, "body": body}
        return {"client": client.name, "version": "1", "commands": [], "environment": {}, "values": VALUES,
                "requests": [request]}  # fmt: skip

    monkeypatch.setattr(command, "record_client", record)
    words = [str(tmp_path / "programs"), "codex", "cline", "--sessions", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["record_clients", *words])
    command.main()
    for name in ("codex", "cline"):
        stored = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
        assert stored["client"] == name
        assert stored["requests"][0]["body"]["messages"] == [PROMPT, '⟦text 1: 43; "\'" 1⟧']


def test_prompts_answers_and_calls_are_our_own_texts() -> None:
    texts = command.own_texts(CODEX_KNOWN_MODEL, VALUES)
    assert {PROMPT, "I read the note.", "cat note.txt", '{"cmd": "cat note.txt"}'} <= set(texts)
    assert any(text.startswith("*** Begin Patch") for text in texts)


def test_every_client_has_a_recorded_session_and_no_session_is_left_over() -> None:
    assert {path.stem for path in command.SESSIONS.glob("*.json")} == set(CLIENTS)
