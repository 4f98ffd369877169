"""live_server: the server, the keys and the interval that the options of `doctor --url` and `debug-dump` name."""

import argparse
from pathlib import Path

from chairlift.cli.client_tls import tls_context
from chairlift.cli.diagnosis.server_reader import Keys, ServerReader
from chairlift.cli.settings.resolve_settings import process_environment
from chairlift.core.errors import ConfigError

MIN_SECONDS, MAX_SECONDS = 0.1, 3600.0


def live_server(arguments: argparse.Namespace) -> tuple[ServerReader, Keys, float]:
    """Return the reader of the server, the keys of its replicas, and the seconds between two readings.

    Raises ConfigError.
    """
    if not MIN_SECONDS <= arguments.interval <= MAX_SECONDS:
        raise ConfigError(f"--interval must be from 0.1 to 3600 seconds, got {arguments.interval:g}", option="interval")
    environ = process_environment()
    keys = Keys(api=environ.get("CHAIRLIFT_API_KEY", ""), admin=environ.get("CHAIRLIFT_ADMIN_KEY", ""))
    replica_keys = keys
    if arguments.replica_key_file is not None:
        from chairlift.router.proxy.upstream import UpstreamConfig

        key = UpstreamConfig(key_file=Path(arguments.replica_key_file)).read_key()
        replica_keys = Keys(api=key, admin=keys.admin)
    tls = tls_context(arguments.tls_ca, arguments.tls_client_cert, arguments.tls_client_key)
    return ServerReader(arguments.url, keys, tls=tls), replica_keys, arguments.interval
