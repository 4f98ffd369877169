"""`chairlift router`: the composition root of the router's process."""

import argparse

from chairlift.cli.console import ServiceConsole
from chairlift.cli.default_files_folder import with_files_folder
from chairlift.cli.redacted_settings import shown_settings
from chairlift.cli.router_options import discovery_sources, router_config
from chairlift.cli.server_options import credentials_reader, listen_address
from chairlift.cli.settings import router_settings, settings
from chairlift.cli.settings.reload import SettingsReloader
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.tracing_options import open_tracer
from chairlift.router.router_process import RouterParts
from chairlift.router.router_process import run as route


def run(arguments: argparse.Namespace) -> int:
    """Route until SIGTERM or Ctrl-C; returns the exit code. Raises ConfigError."""
    environ = process_environment()
    options = {
        **resolve_group(settings.ROUTER_SERVER, arguments, environ),
        **resolve_group(router_settings.ROUTER, arguments, environ),
    }
    listening, config, sources = (
        listen_address(options),
        router_config(with_files_folder(options, environ)),
        discovery_sources(options),
    )
    tls = listening.tls_context()
    config.shared_state.check_files()
    read_credentials = credentials_reader(options, listening, environ, arguments.api_key)
    tracer = open_tracer(options, environ, "chairlift-router")
    service_console, code = ServiceConsole(quiet=arguments.quiet), 1
    try:
        code = route(RouterParts(
            config=config, sources=sources, listening=listening, tls=tls, tracer=tracer,
            read_credentials=read_credentials, shown_settings=shown_settings(options, environ),
            print_line=service_console.print_line,
            read_settings=None if arguments.settings_file is None else SettingsReloader.of_router(arguments, environ),
        ))  # fmt: skip
    finally:
        if tracer is not None:
            tracer.close()
        service_console.close(code)
    return code
