"""Coding agents run by themselves in front of the server with scripted replies, and use a tool of their own.

tools/record_clients/clients.py has how they are started; tests/support_scripted_model.py has the replies.
"""

import os
import subprocess
from pathlib import Path

import pytest

from record_clients.clients import CLIENTS
from record_clients.recorded_client import client_environ, fill, prepare_folders
from record_clients.scripted_answer import TEXT

AGENTS = ("claude-code", "codex", "opencode", "qwen-code")
AGENT_TIMEOUT_SECONDS = 120


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_runs_a_command_and_ends_with_the_text(name: str, tmp_path: Path) -> None:
    url = os.environ["CHAIRLIFT_SUITE_SCRIPTED_URL"].removesuffix("/v1")
    programs = Path(os.environ["CHAIRLIFT_SUITE_PROGRAMS"])
    client, prompt = CLIENTS[name], f"This is a task for {name}: write answer.txt."
    values = prepare_folders(client, tmp_path / "session", url, programs, model="scripted", prompt=prompt)
    (command,) = client.commands
    completed = subprocess.run(
        [programs / command[0], *(fill(word, values) for word in command[1:])], cwd=values["work"],
        env=client_environ(client, values), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=AGENT_TIMEOUT_SECONDS,
    )  # fmt: skip
    output = completed.stdout + completed.stderr
    assert completed.returncode == 0, output
    assert TEXT in completed.stdout, output
    assert (Path(values["work"]) / "answer.txt").read_text() == "noon", output
