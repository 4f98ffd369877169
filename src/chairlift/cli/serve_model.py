"""serve_model: the composition root of the API server process and its engine process."""

import argparse

from chairlift.cli.console import Console, ServiceConsole
from chairlift.cli.default_files_folder import with_files_folder
from chairlift.cli.model_aliases import model_aliases
from chairlift.cli.model_display_name import model_display_name
from chairlift.cli.redacted_settings import shown_settings
from chairlift.cli.registration_options import replica_registration
from chairlift.cli.server_options import credentials_reader, engine_queue_size, listen_address, server_config
from chairlift.cli.settings import settings
from chairlift.cli.settings.reload import SettingsReloader
from chairlift.cli.settings.resolve_settings import process_environment, resolve, resolve_group
from chairlift.cli.tracing_options import open_tracer
from chairlift.engine.client.process import ProcessClient
from chairlift.engine.ipc.engine_process import PrespawnedProcess
from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import no_model_given
from chairlift.llm.options import Options
from chairlift.llm.text_service import TextService
from chairlift.server.server_process import ServerParts
from chairlift.server.server_process import run as serve


def serve_model(arguments: argparse.Namespace, launched: PrespawnedProcess | None) -> int:
    """Serve a model by the engine process until SIGTERM or Ctrl-C; returns the exit code.

    Raises ConfigError and ModelError for invalid input.
    """
    console, environ = Console(quiet=arguments.quiet), process_environment()
    options = resolve_group(settings.SERVER, arguments, environ)
    engine: Options = {"engine_mode": "process", **resolve_group(settings.SERVE_SETTINGS, arguments, environ)}  # type: ignore[typeddict-item]
    engine["max_queue_size"] = engine_queue_size(options, engine)
    if (seed := resolve(settings.SERVE_SEED, arguments, environ)) is not None:
        engine["seed"] = seed.value
    listening = listen_address(options)
    tls = listening.tls_context()
    prepared = prepare(arguments.model, engine, needs_full_length=True, needs_device=True, launched=launched)
    names = tuple(options.get("served_model_name") or [model_display_name(prepared.model)])
    registration = replica_registration(options, listening, names)
    read_credentials = credentials_reader(options, listening, environ, arguments.api_key)
    tracer = open_tracer(options, environ, "chairlift-server")

    console.print_line(f"serving {prepared.model}" if arguments.model else no_model_given())
    service_console, code = ServiceConsole(quiet=arguments.quiet), 1
    try:
        code = serve(ServerParts(
            config=server_config(
                names, with_files_folder(options, environ), model_aliases(prepared.model)
            ),
            listening=listening, tls=tls,
            read_credentials=read_credentials, start=prepared.start, engine_pid=_engine_pid,
            budget=prepared.scheduler.max_batch_tokens, max_running=prepared.scheduler.max_running_sequences,
            print_line=service_console.print_line,
            read_settings=None if arguments.settings_file is None else SettingsReloader.of_server(
                arguments, environ, names, engine["max_queue_size"]
            ), registration=registration, tracer=tracer,
            shown_settings=shown_settings({"model": prepared.model, **options, **engine}, environ),
        ))  # fmt: skip
    finally:
        if tracer is not None:
            tracer.close()
        prepared.close()
        service_console.close(code)
    return code


def _engine_pid(service: TextService) -> int | None:
    client = service.client
    process = client.process if isinstance(client, ProcessClient) else None
    return None if process is None else process.pid
