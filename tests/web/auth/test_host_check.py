"""HostCheck: names of this machine, DNS rebinding, and POSTs of other sites' pages."""

import socket
from typing import Any

import pytest

from chairlift.core.errors import ConfigError, Forbidden
from chairlift.web.auth.host_check import HostCheck, check_allowed_host, check_origin
from support_shares import for_each

SERVER = ("192.0.2.7", 8000)


def scope_with(method: str = "GET", server: Any = SERVER, **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"method": method, "server": server, "headers": pairs}


def is_host_allowed(check: HostCheck, host: str, server: Any = SERVER) -> bool:
    try:
        check.check_host(scope_with(server=server, host=host))
    except Forbidden:
        return False
    return True


def is_page_allowed(check: HostCheck, method: str = "POST", **headers: str) -> bool:
    try:
        check.check_origin(scope_with(method, **headers))
    except Forbidden:
        return False
    return True


@for_each("host", [
    "localhost", "localhost:8000", "LOCALHOST", "localhost.", "localhost:", "chat.localhost:8000", "127.0.0.1:8000",
    "127.1.2.3", "[::1]:8000", "[::1]", "0.0.0.0:8000", "192.0.2.7", "192.0.2.7:1", "[::ffff:192.0.2.7]:8000",
    "host.docker.internal:8000", socket.gethostname(),
    f"{socket.gethostname().partition('.')[0]}.local", f"{socket.gethostname().upper()}:8000", "box.lan:8000",
])  # fmt: skip
def test_names_and_addresses_of_this_machine_are_allowed(host: str) -> None:
    assert is_host_allowed(HostCheck(own_names=("box.lan",)), host)


@for_each("host", [
    "evil.example", "evil.example:8000", "localhost.evil.example", "evil-localhost", "127.0.0.1.evil.example",
    "192.0.2.8", "10.0.0.1:8000", "[2001:db8::1]:8000", "127.1", "2130706433", "0x7f.0.0.1", "", ":8000", "x/?",
    "a/v1/models?", "evil.example#localhost", "localhost@evil.example", "evil.example, localhost", "local host",
    "localhost:8000:1", "localhost:x", "[::1", "::1", "[localhost]", "localhöst", ".localhost.evil.example", "*",
])  # fmt: skip
def test_other_names_and_texts_are_rejected(host: str) -> None:
    assert not is_host_allowed(HostCheck(own_names=("",)), host)


def test_an_address_of_this_machine_is_the_one_that_the_client_reached() -> None:
    assert is_host_allowed(HostCheck(), "[2001:db8::1]:8000", ("2001:db8:0::1", 8000, 0, 0))
    assert is_host_allowed(HostCheck(), "10.1.2.3", ("::ffff:10.1.2.3", 8000))
    assert not is_host_allowed(HostCheck(), "10.1.2.3", None)
    assert is_host_allowed(HostCheck(), "127.0.0.1", None)


def test_every_one_of_two_headers_counts_and_none_is_no_browser() -> None:
    scope = scope_with()
    HostCheck().check_host(scope)
    scope["headers"] = [(b"host", b"localhost"), (b"host", b"evil.example")]
    with pytest.raises(Forbidden, match=r"^the header Host is 'evil.example', which is no name of this server; allow "):
        HostCheck().check_host(scope)


def test_a_long_host_is_shown_in_part() -> None:
    with pytest.raises(Forbidden) as caught:
        HostCheck().check_host(scope_with(host="x" * 10_000))
    assert len(caught.value.message) < 250


def test_names_can_be_added() -> None:
    check = HostCheck(["Proxy.Example.com", "*.svc.cluster.local"])
    assert check.is_explicit and not HostCheck().is_explicit
    for host in ("proxy.example.com:443", "PROXY.example.com.", "chairlift.ml.svc.cluster.local:8000", "localhost"):
        assert is_host_allowed(check, host), host
    for host in (
        "example.com",
        "a.proxy.example.com",
        "svc.cluster.local",
        "xsvc.cluster.local",
        "*.svc.cluster.local",
    ):
        assert not is_host_allowed(check, host), host
    assert is_host_allowed(HostCheck(["*"]), "evil.example")


# -- pages of other sites ------------------------------------------------------------------------------------------


@for_each("headers", [
    {}, {"host": "localhost:8000"}, {"host": "localhost:8000", "origin": "http://localhost:8000"},
    {"host": "localhost:8000", "sec_fetch_site": "same-origin", "origin": "https://behind-a-proxy.example"},
    {"host": "localhost", "sec_fetch_site": "none"}, {"host": "LocalHost:8000", "origin": "http://localhost:8000"},
    {"host": "localhost", "origin": "https://chat.example", "sec_fetch_site": "cross-site"},
])  # fmt: skip
def test_programs_this_servers_pages_and_named_origins_may_post(headers: dict[str, str]) -> None:
    assert is_page_allowed(HostCheck(cors_origins=["https://chat.example"]), **headers)


@for_each("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": ""}, {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"}, {"sec_fetch_site": "Same-Origin"},
    {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"}, {"origin": "http://localhost"},
    {"origin": "localhost:8000"}, {"origin": "https://chat.example.evil.example"},
])  # fmt: skip
def test_pages_of_other_sites_may_not_post(headers: dict[str, str]) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "FROB"):
        assert not is_page_allowed(HostCheck(cors_origins=["https://chat.example"]), method, host="localhost:8000",
                                   **headers)  # fmt: skip
    for method in ("GET", "HEAD", "OPTIONS"):
        assert is_page_allowed(HostCheck(), method, host="localhost:8000", **headers)


def test_an_empty_host_is_not_the_host_of_an_empty_origin() -> None:
    assert not is_page_allowed(HostCheck(), origin="null")
    assert not is_page_allowed(HostCheck(), host="", origin="x://")


def test_one_foreign_origin_among_two_is_enough() -> None:
    scope = scope_with("POST", host="localhost", origin="http://localhost")
    HostCheck().check_origin(scope)
    scope["headers"].append((b"origin", b"https://evil.example"))
    with pytest.raises(Forbidden, match="allow the origin by --cors-origin ORIGIN, or set API keys"):
        HostCheck().check_origin(scope)


def test_any_origin_may_post_where_the_operator_says_so() -> None:
    assert is_page_allowed(HostCheck(cors_origins=["*"]), origin="https://evil.example", sec_fetch_site="cross-site")


# -- settings ------------------------------------------------------------------------------------------------------


@for_each("name", ["a", "proxy.example.com", "*.example.com", "*", "10.0.0.1", "2001:db8::1", "my_host."])
def test_a_name_or_an_address_can_be_allowed(name: str) -> None:
    check_allowed_host(name)


@for_each("name", ["", "http://a", "a:8000", "a/", "[::1]", "a.*", "*a", "a b", "ä"])
def test_a_host_that_no_request_can_have_is_rejected(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^allowed_hosts must be a name or an address without scheme and port, as "
    ) as caught:
        check_allowed_host(name)
    assert caught.value.details == {"option": "allowed_hosts"}


@for_each("origin", ["*", "null", "https://a.example", "http://localhost:3000", "http://[::1]:80", "app://x"])
def test_an_origin_can_be_allowed(origin: str) -> None:
    check_origin(origin)


@for_each("origin", ["", "a.example", "https://a.example/", "https://a/b", "https://", "https://a b", "HTTPS://a"])
def test_an_origin_that_no_browser_sends_is_rejected(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"^cors_origins must be a scheme and a host without a path, as ") as caught:
        check_origin(origin)
    assert caught.value.details == {"option": "cors_origins"}
