"""Registration options: what a replica advertises, and settings that are not valid."""

import pytest

from chairlift.cli.registration_options import replica_registration
from chairlift.core.errors import ConfigError
from chairlift.server.server_process import ListenAddress
from chairlift.web.registry.replica_record import ReplicaRecord
from chairlift.web.registry.replica_registration import ReplicaRegistration


def record(
    options: dict[str, object], listen_url: str = "http://10.0.0.9:8100", host: str = "10.0.0.9"
) -> ReplicaRecord:
    registration = replica_registration({"register": "etcd://h/p", **options}, ListenAddress(host=host), ("a", "b"))
    assert isinstance(registration, ReplicaRegistration)
    return registration._make_record(listen_url)


def test_without_register_there_is_no_registration() -> None:
    assert replica_registration({}, ListenAddress(), ("a",)) is None


def test_the_listen_url_is_advertised_by_default() -> None:
    each = record({})
    assert (each.url, each.weight, each.models, each.version, each.zone) == (
        "http://10.0.0.9:8100", 1, ("a", "b"), "", "",
    )  # fmt: skip
    assert each.instance != record({}).instance


def test_settings_reach_the_record() -> None:
    options = {"advertise_url": "https://Replica.example:443/", "register_weight": 2.5, "register_version": "v2",
               "register_zone": "eu-1"}  # fmt: skip
    each = record(options, host="0.0.0.0")
    assert (each.url, each.weight, each.version, each.zone) == ("https://replica.example", 2.5, "v2", "eu-1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_wildcard_host_needs_an_advertised_url(host: str) -> None:
    with pytest.raises(ConfigError, match="set --advertise-url") as error:
        record({}, host=host)
    assert error.value.details == {"option": "host"}


@pytest.mark.parametrize(("options", "option", "message"), [
    ({"advertise_url": "http://h/v1"}, "advertise_url", "has more than scheme, host and port"),
    ({"register_weight": -1.0}, "register_weight", "must be between 0 and 1000, got -1"),
    ({"register_weight": float("nan")}, "register_weight", "got nan"), ({"register": "x"}, "register", "no registry"),
    ({"register": "consul://h/s?ttl=0"}, "register", "seconds between 1 and 3600"),
])  # fmt: skip
def test_settings_that_are_not_valid(options: dict[str, object], option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        record(options)
    assert error.value.details == {"option": option}


@pytest.mark.parametrize("name", ["advertise_url", "register_weight", "register_version", "register_zone"])
def test_settings_of_a_registration_need_register(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} needs --register, too"):
        replica_registration({name: "x"}, ListenAddress(), ("a",))
