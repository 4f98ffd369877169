"""`chairlift fleet`: the composition root of a fleet: router, autoscaler and cluster in one process."""

import argparse

from chairlift.cli import autoscaler_options, fleet_options, fleet_state_files, replica_spec_options
from chairlift.cli.console import ServiceConsole
from chairlift.cli.default_files_folder import with_files_folder
from chairlift.cli.fleet_clusters import open_cluster
from chairlift.cli.redacted_settings import shown_settings
from chairlift.cli.router_options import router_config
from chairlift.cli.server_options import credentials_reader, listen_address
from chairlift.cli.settings import settings
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET, SIGNALS
from chairlift.cli.settings.reload import SettingsReloader
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.settings.router_settings import FLEET_ROUTER
from chairlift.cli.tracing_options import open_tracer
from chairlift.fleet.fleet_process import FleetParts
from chairlift.fleet.fleet_process import run as serve
from chairlift.router.router_process import RouterParts


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C, then stop the replicas; returns the exit code. Raises ConfigError."""
    environ = process_environment()
    options = {
        "hold_timeout": fleet_options.DEFAULT_HOLD_SECONDS,
        "empty_grace": 0.0,  # the list of the fleet's own replicas is right at once
        **resolve_group(settings.ROUTER_SERVER, arguments, environ),
        **resolve_group(FLEET_ROUTER, arguments, environ),
        **resolve_group((*FLEET, *AUTOSCALER, *SIGNALS), arguments, environ),
    }
    model = resolve_group((settings.MODEL,), arguments, environ).get("model", "")
    queries, targets = autoscaler_options.parse_queries(options)
    autoscaler, listening = autoscaler_options.autoscaler_config(options, targets), listen_address(options)
    folder = fleet_state_files.state_folder(options, environ)
    opened = open_cluster(options, folder)
    keys = ["", ""]
    if opened.starts_specs:
        names = (fleet_state_files.REPLICA_KEY_FILE, fleet_state_files.REPLICA_ADMIN_KEY_FILE)
        keys = [fleet_state_files.replica_key(folder, name) for name in names]
        options["replica_key_file"], options["replica_admin_key_file"] = (str(folder / name) for name in names)
    spec = replica_spec_options.replica_spec(model, options, *keys)
    config, tls = router_config(with_files_folder(options, environ)), listening.tls_context()
    config.shared_state.check_files()
    read_credentials = credentials_reader(options, listening, environ, arguments.api_key)
    tracer = open_tracer(options, environ, "chairlift-router")
    service_console, code = ServiceConsole(quiet=arguments.quiet), 1
    try:
        reloader = None if arguments.settings_file is None else SettingsReloader.of_fleet(arguments, environ)
        code = serve(FleetParts(
            router=RouterParts(
                config=config, sources=(), listening=listening, tls=tls, read_credentials=read_credentials,
                print_line=service_console.print_line, read_settings=reloader, tracer=tracer,
                shown_settings=shown_settings({"model": model, **options}, environ),
            ),
            cluster=opened.cluster, spec=spec, parse_spec=replica_spec_options.updated_spec, autoscaler=autoscaler,
            slo_quantile=options.get("slo_quantile", 0.95),
            drain_seconds=options.get("replica_drain_timeout", 120.0),
            start_seconds=options.get("replica_start_timeout", 1800.0),
            unresponsive_seconds=options.get("replica_unresponsive_timeout", 60.0),
            stop_seconds=opened.stop_seconds, has_versions=opened.starts_specs,
            signals=autoscaler_options.open_signals(options, queries), log_lines=opened.log_lines,
        ))  # fmt: skip
    finally:
        if tracer is not None:
            tracer.close()
        service_console.close(code)
    return code
