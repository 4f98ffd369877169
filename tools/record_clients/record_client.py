"""record_client(): run a client against a stand-in server and return its session as it was sent."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from record_clients.recorded_client import RecordedClient, client_environ, fill, prepare_folders
from record_clients.scripted_answer import ScriptedCall
from record_clients.stand_in_server import run_stand_in

CLIENT_TIMEOUT_SECONDS = 180.0
"""Seconds that one command of a client may run."""


async def record_client(client: RecordedClient, programs: Path, folder: Path) -> dict[str, Any]:
    """Return a client's session: its name, version, start, values that `replace_values` replaces, and requests.

    Args:
        client: the client.
        programs: folder with its programs.
        folder: an empty folder for its settings, its working folder and its output, output.log.
    Raises RuntimeError with the output if a command fails.
    """
    script: list[ScriptedCall] = []
    async with run_stand_in(script, client.texts) as server:
        values = prepare_folders(client, folder, server.url, programs)
        script += [_fill_call(call, values) for call in client.script]
        environ = client_environ(client, values)
        version = await _run([fill(word, values) for word in client.version], programs, environ, folder, ())
        for command in client.commands:
            words = [fill(word, values) for word in command]
            output = await _run(words, programs, environ, folder, client.prompts)
            (folder / "output.log").write_text(output, encoding="utf-8")
    return {
        "client": client.name, "version": version.strip().rpartition("\n")[2],
        "commands": [list(each) for each in client.commands], "environment": dict(client.environ),
        "values": values, "requests": server.requests,
    }  # fmt: skip


def _fill_call(call: ScriptedCall, values: Mapping[str, str]) -> ScriptedCall:
    filled = fill(json.dumps(call.arguments), values)
    return replace(call, arguments=json.loads(filled))


async def _run(
    words: Sequence[str], programs: Path, environ: Mapping[str, str], folder: Path, prompts: Sequence[str]
) -> str:
    process = await asyncio.create_subprocess_exec(
        str(programs / words[0]), *words[1:], cwd=folder / "work", env=dict(environ), stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    sent = "".join(prompt + "\n" for prompt in prompts).encode()
    try:
        output, _ = await asyncio.wait_for(process.communicate(sent), CLIENT_TIMEOUT_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    text = output.decode("utf-8", errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with status {process.returncode}:\n{text}")
    return text
