"""Settings of a server: convert server settings to the listen address and the ServerConfig."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from chairlift.cli.registration_options import replica_registration
from chairlift.cli.settings.load_settings_file import check_is_file
from chairlift.cli.tracing_options import check_endpoint, sampling_config
from chairlift.core.errors import ConfigError
from chairlift.core.sampling_params import MAX_CHOICES
from chairlift.engine.config import SchedulerConfig
from chairlift.server.config import ServerConfig
from chairlift.web.admission import AdmissionLimits
from chairlift.web.auth.credentials import Credentials, CredentialSources
from chairlift.web.auth.jwt_verifier import JWTConfig
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.service.http_config import HttpConfig
from chairlift.web.service.listen_address import ListenAddress
from chairlift.web.tenant_limits import TenantLimits

log = logging.getLogger(__name__)

MAX_PORT = 65_535


def validate_server_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for server settings that are not valid.

    The files that they name are not read.
    """
    names = tuple(options.get("served_model_name") or ["model"])
    replica_registration(options, listen_address(options), names)
    credential_sources(options)
    server_config(names, options)
    sampling_config(options, {})
    check_endpoint(options)


def listen_address(options: Mapping[str, Any]) -> ListenAddress:
    """Return the listen address of these server settings. Raises ConfigError."""
    certificate, key = options.get("tls_cert"), options.get("tls_key")
    if (certificate is None) != (key is None):
        missing = "tls_cert" if certificate is None else "tls_key"
        given = "tls_key" if certificate is None else "tls_cert"
        raise ConfigError(f"{given} needs {missing}, too: a certificate and its private key", option=given)
    if not 0 <= options.get("port", 0) <= MAX_PORT:
        raise ConfigError(f"port must be between 0 and {MAX_PORT}, got {options['port']}", option="port")
    address = {name: options[name] for name in ("host", "port") if name in options}
    client_ca = options.get("tls_client_ca")
    if certificate is None or key is None:
        if client_ca is not None:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key, too: clients show their certificates over TLS",
                              option="tls_client_ca")  # fmt: skip
        return ListenAddress(**address)
    return ListenAddress(
        **address,
        certificate=Path(certificate),
        key=Path(key),
        client_ca=None if client_ca is None else Path(client_ca),
    )


def credential_sources(options: Mapping[str, Any]) -> CredentialSources:
    """Return where these server settings read keys from. Raises ConfigError for settings that exclude each other."""
    files = {
        name: Path(options[name]) for name in ("key_file", "jwt_secret_file", "jwt_jwks_file") if options.get(name)
    }
    config = {each.name: options[f"jwt_{each.name}"] for each in fields(JWTConfig) if f"jwt_{each.name}" in options}
    return CredentialSources(
        **files, jwt_algorithm=options.get("jwt_algorithm"), token_config=JWTConfig(**config),
    )  # fmt: skip


def credentials_reader(
    options: Mapping[str, Any], listening: ListenAddress, environ: Mapping[str, str], api_keys: Sequence[str]
) -> Callable[[], Credentials]:
    """Return what reads the keys, at the start and again on SIGHUP; it raises ConfigError.

    It rejects a listen address that other machines can reach where no key is needed, unless `insecure` is set.
    """
    if api_keys:
        log.warning("--api-key is visible in the list of processes; --key-file and CHAIRLIFT_API_KEY are not")
    sources = credential_sources(options)
    is_open_to_all = listening.client_ca is None and not options.get("insecure")
    were_read = False

    def read() -> Credentials:
        nonlocal were_read
        for file, name in sources.files() if were_read else ():
            check_is_file(file, name)
        credentials, were_read = sources.read(environ, api_keys), True
        if is_open_to_all and not credentials.are_required and not listening.is_loopback:
            raise ConfigError(
                f"host {listening.host} is not a loopback address and needs API keys; set --key-file or "
                "CHAIRLIFT_API_KEY, or accept requests without keys by --insecure", option="host",
            )  # fmt: skip
        return credentials

    return read


def http_config(options: Mapping[str, Any]) -> HttpConfig:
    """Return the settings that every HTTP service has. Raises ConfigError."""
    own = _fields_of(options, HttpConfig)
    for name in ("cors_origins", "allowed_hosts"):
        if name in own:
            own[name] = tuple(own[name])
    admission, tenant = _fields_of(options, AdmissionLimits), _fields_of(options, TenantLimits)
    files = _fields_of(options, FilesConfig)
    if files.get("files_folder") is not None:
        files["files_folder"] = Path(files["files_folder"]).expanduser().absolute()
    return HttpConfig(
        admission=AdmissionLimits(**admission), tenant=TenantLimits(**tenant), files=FilesConfig(**files), **own
    )


def server_config(names: tuple[str, ...], options: Mapping[str, Any], aliases: tuple[str, ...] = ()) -> ServerConfig:
    """Return the config of an API server with these settings; `aliases` as of ServerConfig. Raises ConfigError."""
    own = _fields_of(options, ServerConfig)
    if "metric_aliases" in own:
        own["metric_aliases"] = tuple(own["metric_aliases"])
    return ServerConfig(served_names=names, aliases=aliases, http=http_config(options), **own)


def engine_queue_size(server: Mapping[str, Any], engine: Mapping[str, Any]) -> int:
    """Return the capacity of the engine's waiting queue in sequences.

    By default it has room for MAX_CHOICES choices of each request that the server lets wait and of each that runs.

    Raises ConfigError for a `max_queue_size` that cannot hold one choice of each request that the server lets wait.
    """
    admitted = AdmissionLimits(**_fields_of(server, AdmissionLimits)).max_waiting_requests
    if "max_queue_size" not in engine:
        running = engine.get("max_running_requests", SchedulerConfig().max_running_requests)
        return max(1, (admitted + int(running)) * MAX_CHOICES)
    check_queue_size(int(engine["max_queue_size"]), admitted)
    return int(engine["max_queue_size"])


def check_queue_size(size: int, max_waiting_requests: int) -> None:
    """Raise ConfigError if the engine's waiting queue is smaller than the server's admission queue."""
    if size < max_waiting_requests:
        raise ConfigError(
            f"max_queue_size is {size} sequences, less than max_waiting_requests ({max_waiting_requests}); raise it or "
            "lower max_waiting_requests", option="max_queue_size",
        )  # fmt: skip


def _fields_of(options: Mapping[str, Any], config_type: type[Any]) -> dict[str, Any]:
    """Return those settings that are fields of a config type."""
    return {field.name: options[field.name] for field in fields(config_type) if field.name in options}
