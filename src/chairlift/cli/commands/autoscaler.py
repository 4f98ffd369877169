"""`chairlift autoscaler`: the composition root of an autoscaler alone."""

import argparse
from pathlib import Path

from chairlift.cli import autoscaler_options, replica_spec_options
from chairlift.cli.console import ServiceConsole
from chairlift.cli.fleet_clusters import LOCAL, open_cluster
from chairlift.cli.redacted_settings import shown_settings
from chairlift.cli.router_options import upstream_config
from chairlift.cli.server_options import credentials_reader, http_config, listen_address
from chairlift.cli.settings import settings
from chairlift.cli.settings.fleet_settings import AUTOSCALER, AUTOSCALER_FLEET, SIGNALS
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.settings.router_settings import REPLICA_ACCESS
from chairlift.core.errors import ConfigError
from chairlift.fleet.autoscaler_process import AutoscalerParts
from chairlift.fleet.autoscaler_process import run as scale


def run(arguments: argparse.Namespace) -> int:
    """Scale until SIGTERM or Ctrl-C; returns the exit code. Raises ConfigError."""
    environ = process_environment()
    groups = (*AUTOSCALER_FLEET, *AUTOSCALER, *SIGNALS, *REPLICA_ACCESS, *settings.AUTOSCALER_SERVER)
    options = resolve_group(groups, arguments, environ)
    if options.get("cluster", LOCAL) == LOCAL:
        raise ConfigError(
            "an autoscaler needs the cluster of its replicas: ray, kubernetes://NAMESPACE/deployment/NAME or the URL "
            "of a webhook; `chairlift fleet` runs replicas on this machine", option="cluster",
        )  # fmt: skip
    queries, targets = autoscaler_options.parse_queries(options)
    autoscaler, listening = autoscaler_options.autoscaler_config(options, targets), listen_address(options)
    autoscaler_options.check_wake_signal(autoscaler, queries)
    model = resolve_group((settings.MODEL,), arguments, environ).get("model", "")
    upstream, tls = upstream_config(options), listening.tls_context()
    opened = open_cluster(options, Path())
    spec = replica_spec_options.replica_spec(model, options, upstream.read_key() if opened.starts_specs else "")
    read_credentials = credentials_reader(options, listening, environ, arguments.api_key)
    service_console, code = ServiceConsole(quiet=arguments.quiet), 1
    try:
        code = scale(AutoscalerParts(
            http=http_config(options), listening=listening, tls=tls, read_credentials=read_credentials,
            print_line=service_console.print_line, cluster=opened.cluster, spec=spec,
            has_versions=opened.starts_specs, autoscaler=autoscaler, upstream=upstream,
            signals=autoscaler_options.open_signals(options, queries),
            start_seconds=options.get("replica_start_timeout", 1800.0),
            unresponsive_seconds=options.get("replica_unresponsive_timeout", 60.0),
            shown_settings=shown_settings({"model": model, **options}, environ),
        ))  # fmt: skip
    finally:
        service_console.close(code)
    return code
