"""Record clients: python -m record_clients PROGRAMS CLIENT... writes tests/contract/recorded_sessions/CLIENT.json.

PROGRAMS is a folder with the clients' programs; docs/clients.md says which and in which versions.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from record_clients.clients import CLIENTS
from record_clients.record_client import record_client
from record_clients.recorded_client import NOTE, RecordedClient, fill
from record_clients.session_redaction import SessionRedaction

SESSIONS = Path(__file__).parents[2] / "tests" / "contract" / "recorded_sessions"


def main() -> None:
    """Record the clients that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m record_clients", description=__doc__)
    parser.add_argument("programs", type=Path, help="folder with the clients' programs")
    parser.add_argument("clients", nargs="+", choices=CLIENTS)
    parser.add_argument("--sessions", type=Path, default=SESSIONS, help="where sessions are written")
    options = parser.parse_args()
    for name in options.clients:
        with tempfile.TemporaryDirectory(prefix="record-") as folder:
            record = record_client(CLIENTS[name], options.programs.absolute(), Path(folder) / "session")
            session = asyncio.run(record)
        redaction = SessionRedaction(session["values"], own_texts(CLIENTS[name], session["values"]))
        text = json.dumps(redaction.redact(session), ensure_ascii=False, indent=1)
        (options.sessions / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def own_texts(client: RecordedClient, values: dict[str, str]) -> list[str]:
    """Return the texts of a session that we wrote: prompts, answers, arguments of calls and the note."""
    words = [word for command in client.commands for word in command]
    calls = [text for call in client.script for text in (call.text, call.input)]
    arguments = [
        each for call in client.script if not isinstance(call.arguments, str) for each in call.arguments.values()
    ]
    texts = [*words, *client.prompts, *client.texts, *calls, *filter(lambda each: isinstance(each, str), arguments)]
    return [NOTE, *(fill(text, values) for text in texts)]


if __name__ == "__main__":
    main()
