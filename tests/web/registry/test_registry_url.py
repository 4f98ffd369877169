"""registry_url.py: hosts, path and options of a URL, and messages for those that are not valid."""

from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.registry.registry_url import RegistryURL, parse_registry_url
from support_shares import for_each


def parse(text: str, default_port: int | None = 2379) -> RegistryURL:
    return parse_registry_url(text, options={"tls", "ca_file", "ttl"}, default_port=default_port, form="etcd://h/p")


def test_hosts_have_ports_and_the_path_has_no_slashes_around_it() -> None:
    url = parse("etcd://A,b:1,[::1],[fd00::2]:7/x/y%20z/?tls=true&ttl=2.5")
    assert url.hosts == ("a:2379", "b:1", "[::1]:2379", "[fd00::2]:7")
    assert (url.scheme, url.path, url.options) == ("etcd", "x/y z", {"tls": "true", "ttl": "2.5"})
    assert url.base_urls()[3] == "https://[fd00::2]:7"
    assert url.seconds("ttl", 9, least=1, most=3) == 2.5
    assert parse("etcd://a/p").seconds("ttl", 9, least=1, most=30) == 9


@pytest.mark.parametrize(("options", "is_tls"), [
    ("", False), ("?tls=false", False), ("?tls=TRUE", True), ("?ca_file=/x", True), ("?ca_file=/x&tls=false", False),
])  # fmt: skip
def test_tls_is_on_by_option_or_by_a_ca(options: str, is_tls: bool) -> None:
    assert parse("etcd://a/p" + options).is_tls is is_tls


def test_files_of_options() -> None:
    assert parse("etcd://a/p?ca_file=/x/ca.pem").file("ca_file") == Path("/x/ca.pem")
    assert parse("etcd://a/p").file("ca_file") is None


@for_each(("text", "message"), [
    ("etcd", "'etcd' should look like etcd://h/p"), ("etcd:///p", "should look like"),
    ("etcd://user@a/p", "should look like"), ("etcd://a/p#x", "should look like"), ("etcd://a,/p", "an empty host"),
    ("etcd://a:0/p", "must be between 1 and 65535, got 0"), ("etcd://a:x/p", "'a:x'"), ("etcd://[::1/p", "is no URL"),
    ("etcd://a/p?tlss=true", "unknown option 'tlss'; did you mean tls?"),
    ("etcd://a/p?zzz=1", "the options are ca_file, tls, ttl"), ("etcd://a/p?ttl=1&ttl=2", "the option 'ttl' twice"),
    ("etcd://a/p?ttl=", "the option 'ttl' of .* is empty"), ("etcd://a/p?ttl", "is no URL"),
])  # fmt: skip
def test_urls_that_are_not_valid(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        parse(text)


@pytest.mark.parametrize("text", [
    "etcd://root:secret@a/p", "etcd://root:secret@[::1/p", "etcd://a/p?token=secret", "etcd://a/p?ttl=&token=secret",
    "etcd://a/p?ttl=1&ttl=2&token=secret",
])  # fmt: skip
def test_a_password_in_a_url_that_is_not_valid_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a/p|::1/p") as caught:
        parse(text)
    assert "secret" not in caught.value.message


def test_a_port_may_be_required_and_one_host_may_be() -> None:
    with pytest.raises(ConfigError, match="has no port after the host a"):
        parse("dns://a", default_port=None)
    with pytest.raises(ConfigError, match="has 2 hosts, etcd takes one"):
        parse("etcd://a,b/p").require_one_host()
    assert parse("etcd://a/p").require_one_host() == "a:2379"


@pytest.mark.parametrize("value", ["x", "nan", "0.5", "31"])
def test_seconds_have_limits(value: str) -> None:
    with pytest.raises(ConfigError, match=f"must be seconds between 1 and 30, got '{value}'"):
        parse(f"etcd://a/p?ttl={value}").seconds("ttl", 9, least=1, most=30)
