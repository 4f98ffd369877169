"""`chairlift fleet update`: replaces the replicas of a running fleet one by one."""

import argparse
import http.client
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chairlift.cli.console import Console
from chairlift.cli.http_request import error_reason, send_request
from chairlift.cli.replica_spec_options import serve_arguments
from chairlift.cli.settings.fleet_settings import REPLICA_OPTION
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.core.errors import ChairliftError, ConfigError

REPLY_SECONDS = 30.0
POLL_SECONDS = 1.0


class FleetUpdateFailed(ChairliftError):
    """The fleet rejects the update, stops it, or cannot be reached."""

    code = "fleet_update_failed"


def run(arguments: argparse.Namespace) -> int:
    """Send the update, and wait for its end with --wait; returns the exit code. Raises what the fleet reports."""
    model, environ = arguments.model, process_environment()
    if model is not None and Path(model).is_dir():
        model = str(Path(model).absolute())  # the fleet may have another current folder
    options = resolve_group((REPLICA_OPTION,), arguments, environ).get("replica_option")
    if model is None and not options:
        raise ConfigError("nothing to update: give a MODEL or --replica-option NAME=VALUE", option="replica_option")
    body: dict[str, Any] = {} if model is None else {"model": model}
    if options:
        body["arguments"] = list(serve_arguments(options))
    key = environ.get("CHAIRLIFT_ADMIN_KEY", "")
    status = request(arguments.url, key, "POST", "/admin/fleet/update", body)
    console = Console(quiet=arguments.quiet)
    console.print_line(f"the fleet replaces its replicas by those of version {status['version']}")
    if arguments.wait:
        version, shown = status["version"], ""
        while status["is_updating"] and status["version"] == version:
            if (reason := status.get("update_failure")) and reason != shown:
                console.print_line(reason)
                shown = reason
            time.sleep(POLL_SECONDS)
            status = request(arguments.url, key, "GET", "/admin/fleet")
        if reason := status.get("update_failure"):
            raise FleetUpdateFailed(reason)
        if status["version"] != version:
            raise FleetUpdateFailed(f"another update, to version {status['version']}, has taken the place of this one")
        console.print_line(f"all replicas have version {version}")
    return 0


def request(url: str, key: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object of a response. Raises FleetUpdateFailed."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url must be the URL of a fleet, as in http://127.0.0.1:8000, got {url!r}", option="url")
    try:
        status, content = send_request(
            f"{parts.scheme}://{parts.netloc}{path}", key, method, body, timeout_seconds=REPLY_SECONDS
        )
    except (OSError, http.client.HTTPException) as error:
        raise FleetUpdateFailed(f"{url} does not respond: {error_reason(error)}") from None
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    if status in (200, 202):
        if not isinstance(fields, dict) or not {"version", "is_updating"} <= set(fields):
            raise FleetUpdateFailed(f"{url} is no fleet: its {path} does not report an update")
        return fields
    if status in (401, 403, 404):
        raise FleetUpdateFailed(
            f"{url} responds {status}: the variable CHAIRLIFT_ADMIN_KEY must have the admin key with which "
            "the fleet was started"
        )
    reported = fields.get("error") if isinstance(fields, dict) else None
    message = reported.get("message", "") if isinstance(reported, dict) else ""
    raise FleetUpdateFailed(f"{url} responds {status}: {message}")
