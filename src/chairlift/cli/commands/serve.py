"""`chairlift serve`: the composition root of a replica's two processes."""

import argparse
import logging
import os
import sys
from pathlib import Path

from chairlift.cli.console import Console
from chairlift.cli.server_options import engine_queue_size, listen_address, server_config
from chairlift.cli.settings import settings
from chairlift.cli.settings.reload import SettingsReloader, check_is_file
from chairlift.core.errors import ConfigError
from chairlift.engine.client.process import ProcessClient
from chairlift.llm.build import prepare
from chairlift.llm.model_names import no_model_given
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService
from chairlift.observability.logging import line_handler, use_background_writer
from chairlift.server.server_process import ServerParts
from chairlift.server.server_process import run as serve
from chairlift.web.auth import KeyRing, read_keys


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to leave; returns the exit code. Raises ConfigError and ModelError for bad input."""
    console, environ = Console(quiet=arguments.quiet), settings.environment()
    door = settings.given(settings.SERVER, arguments, environ)
    engine: Options = {"engine_mode": "process", **settings.given(settings.SERVE_SETTINGS, arguments, environ)}  # type: ignore[typeddict-item]
    engine["max_queue_size"] = engine_queue_size(door, engine)
    listening = listen_address(door)
    prepared = prepare(arguments.model, engine)
    names = tuple(door.get("served_model_name") or [_name(prepared.model)])
    key_file = Path(door["key_file"]) if door.get("key_file") else None

    has_keys = False

    def keys() -> KeyRing:
        nonlocal has_keys
        if has_keys and key_file is not None:
            check_is_file(key_file, "key_file")
        ring, has_keys = read_keys(key_file, environ), True
        if not ring.requires_key and not door.get("insecure") and not listening.is_loopback:
            raise ConfigError(
                f"{listening.host} can be reached by others, so keys are needed (--key-file, CHAIRLIFT_API_KEY); "
                "--insecure serves without", option="host",
            )  # fmt: skip
        return ring

    console.say(f"serving {prepared.model}" if arguments.model else no_model_given())
    logs, lines = use_background_writer(), line_handler(sys.stderr)  # neither waits for a disk or for a pipe

    def say(line: str) -> None:
        if not arguments.quiet:
            lines.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))

    code = 1
    try:
        code = serve(ServerParts(
            config=server_config(names, door), listening=listening, read_keys=keys, start=prepared.start,
            engine_pid=_engine_pid, budget=prepared.scheduler.max_batch_tokens,
            max_running=prepared.scheduler.max_running_sequences, print_line=say,
            read_settings=None if arguments.file is None else SettingsReloader(arguments, environ, names),
        ))  # fmt: skip
    finally:
        prepared.close()
        for each in (lines, logs):
            each.close()
        if lines.is_stuck or logs.is_stuck:
            os._exit(code)  # nobody reads: at its end Python would wait for that
    return code


def _name(model: str) -> str:
    """Return how a model is called where nobody has named it: a hub id or one of our own, or its folder's last part."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model


def _engine_pid(service: TextService) -> int | None:
    client = service.client
    process = client.process if isinstance(client, ProcessClient) else None
    return None if process is None else process.pid
