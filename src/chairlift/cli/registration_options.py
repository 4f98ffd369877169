"""Registration options: convert settings of `serve` to the registration of the replica."""

import ipaddress
import random
import uuid
from collections.abc import Mapping
from typing import Any

from chairlift.cli.settings.service_settings import REGISTRATION
from chairlift.core.errors import ConfigError
from chairlift.router.endpoint import MAX_WEIGHT, Endpoint
from chairlift.server.registration_interface import Registration
from chairlift.web.service.listen_address import ListenAddress

DEFAULT_WEIGHT = 1.0


def replica_registration(
    options: Mapping[str, Any], listening: ListenAddress, models: tuple[str, ...]
) -> Registration | None:
    """Return the registration of a server with these settings, None without --register. Raises ConfigError."""
    if "register" not in options:
        for name in (setting.name for setting in REGISTRATION):
            if name in options:
                raise ConfigError(f"{name} needs --register, too: the URL of a registry", option=name)
        return None
    advertised = options.get("advertise_url")
    if advertised is None and _is_wildcard(listening.host):
        raise ConfigError(
            f"host {listening.host} is no address that a router can reach; set --advertise-url to the URL of this "
            "replica, as http://10.0.0.7:8000", option="host",
        )  # fmt: skip
    try:
        url = None if advertised is None else Endpoint.parse(advertised).url
    except ConfigError as error:
        raise ConfigError(f"advertise_url: {error}", option="advertise_url") from None
    weight = options.get("register_weight", DEFAULT_WEIGHT)
    if not 0 <= weight <= MAX_WEIGHT:
        raise ConfigError(f"register_weight must be between 0 and {MAX_WEIGHT:g}, got {weight:g}",
                          option="register_weight")  # fmt: skip
    from chairlift.web.registry.make_registry import make_registry
    from chairlift.web.registry.replica_record import ReplicaRecord
    from chairlift.web.registry.replica_registration import ReplicaRegistration

    def make_record(listen_url: str) -> ReplicaRecord:
        return ReplicaRecord(
            url=listen_url if url is None else url, weight=weight, models=models,
            version=options.get("register_version", ""), zone=options.get("register_zone", ""),
            instance=uuid.uuid4().hex,
        )  # fmt: skip

    try:
        registry = make_registry(options["register"])
    except ConfigError as error:
        raise ConfigError(str(error), option="register") from None
    return ReplicaRegistration(registry, make_record, rng=random.Random())


def _is_wildcard(host: str) -> bool:
    """Return whether a server with this host listens on every address."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
