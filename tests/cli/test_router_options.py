"""Router options: each setting becomes a field of the router's config, and an error names the setting."""

from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.router_options import discovery_sources, router_config, validate_router_options
from chairlift.cli.settings import settings
from chairlift.cli.settings.router_settings import ROUTER
from chairlift.core.errors import ConfigError
from chairlift.router.config import RouterConfig
from chairlift.router.discovery.consul import ConsulSource
from chairlift.router.discovery.file import FileSource
from chairlift.router.discovery.static import StaticSource
from chairlift.router.shared_state.shared_state_config import SharedStateConfig

VALUES: dict[str, Any] = {
    "policy": "session", "model_route": ["a=b:1,c:2"], "session_header": "X-Sticky", "session_cookie": "sid",
    "max_attempts": 5, "connect_timeout": 1.5, "first_token_timeout": 7.0, "inter_token_timeout": 8.0, "hedging": True,
    "hold_timeout": 9.0,
    "probe_interval": 3.0, "probe_timeout": 1.0, "max_failures": 4, "recovery_timeout": 9.0, "slow_start": 0.0,
    "notify_url": "https://hooks.example/x", "shared_state": "rediss+sentinel://127.0.0.1/m/2", "empty_grace": 11.0,
    "shared_state_password_file": "redis.key", "shared_state_sentinel_password_file": "s.key",
    "shared_state_tls_ca": "redis.pem",
    "replica_key_file": "key", "replica_admin_key_file": "ak",
    "replica_tls_ca": "ca.pem", "replica_tls_cert": "c.pem", "replica_tls_key": "k.pem",
    "max_body_bytes": 77, "tenant_requests_per_minute": 6, "max_waiting_requests": 12,
}  # fmt: skip


def test_every_setting_reaches_its_field() -> None:
    config = router_config(VALUES)
    assert (config.policy, config.session_header, config.session_cookie) == ("session", "x-sticky", "sid")
    assert config.routes.routes == {"a": (("b", 1.0), ("c", 2.0))}
    attempts, probes, breaker = config.attempts, config.health.probes, config.health.breaker
    assert (attempts.max_attempts, attempts.connect_timeout_seconds) == (5, 1.5)
    assert (attempts.first_token_timeout_seconds, attempts.inter_token_timeout_seconds) == (7.0, 8.0)
    assert config.hedging is not None and config.hold_timeout == 9.0
    assert (probes.interval_seconds, probes.timeout_seconds) == (3.0, 1.0)
    assert (breaker.max_failures, breaker.recovery_timeout_seconds) == (4, 9.0)
    assert config.health.slow_start_seconds == 0.0
    assert config.notify is not None and config.notify.url == "https://hooks.example/x"
    shared_state = config.shared_state
    assert (shared_state.url, config.empty_grace_seconds) == ("rediss+sentinel://127.0.0.1/m/2", 11.0)
    assert (shared_state.password_file, shared_state.tls_ca) == (Path("redis.key"), Path("redis.pem"))
    assert shared_state.sentinel_password_file == Path("s.key")
    upstream = config.upstream
    assert (upstream.key_file, upstream.ca) == (Path("key"), Path("ca.pem"))
    assert (upstream.certificate, upstream.key) == (Path("c.pem"), Path("k.pem"))
    http = config.http
    assert (http.max_body_bytes, http.tenant.tenant_requests_per_minute) == (77, 6)
    assert http.admission.max_waiting_requests == 12


def test_every_setting_of_the_router_is_in_these_tests() -> None:
    assert {setting.name for setting in ROUTER} - {"replica", "discovery"} == VALUES.keys() & {
        setting.name for setting in ROUTER
    }


def test_defaults_are_those_that_the_help_shows() -> None:
    config, default = router_config({}), RouterConfig()
    shown = {setting.name: setting.default for setting in ROUTER}
    assert (config.policy, config.session_header) == (shown["policy"], shown["session_header"])
    assert config.empty_grace_seconds == shown["empty_grace"] == default.empty_grace_seconds
    attempts, probes, breaker = config.attempts, config.health.probes, config.health.breaker
    assert attempts.max_attempts == shown["max_attempts"]
    for name in ("connect_timeout", "first_token_timeout", "inter_token_timeout"):
        assert getattr(attempts, f"{name}_seconds") == shown[name]
    assert (probes.interval_seconds, probes.timeout_seconds) == (shown["probe_interval"], shown["probe_timeout"])
    assert (breaker.max_failures, breaker.recovery_timeout_seconds) == (
        shown["max_failures"],
        shown["recovery_timeout"],
    )
    assert config.health.slow_start_seconds == shown["slow_start"]
    assert config.hedging is None and config.notify is None and config.shared_state == SharedStateConfig()


def test_two_routers_have_different_seeds() -> None:
    assert len({router_config({}).seed for _ in range(4)}) > 1


ERRORS = [
    ("policy", "best", "policy must be one of round_robin, "),
    ("model_route", ["a"], "model_route 'a' must look like"),
    ("model_route", ["a=b", "b=a"], "model_route 'a' leads back to itself: a → b → a"),
    ("session_header", "a b", "session_header must be a header name in lower case, got 'a b'"),
    ("session_header", "", "session_header must be a header name in lower case, got ''"),
    ("session_cookie", "a;b", "session_cookie must be a cookie's name, got 'a;b'"),
    ("max_attempts", 0, "max_attempts must be at least 1, got 0"),
    ("connect_timeout", 0.0, "connect_timeout must be above 0, got 0"),
    ("first_token_timeout", -1.0, "first_token_timeout must be above 0, got -1"),
    ("inter_token_timeout", float("nan"), "inter_token_timeout must be above 0, got nan"),
    ("probe_interval", 0.0, "probe_interval must be a number of seconds above 0, got 0"),
    ("probe_timeout", float("inf"), "probe_timeout must be a number of seconds above 0, got inf"),
    ("max_failures", 0, "max_failures must be at least 1, got 0"),
    ("recovery_timeout", 0.0, "recovery_timeout must be a number of seconds above 0, got 0"),
    ("slow_start", -1.0, "slow_start must be at least 0, got -1"),
    ("empty_grace", float("nan"), "empty_grace must be at least 0 seconds, got nan"),
    ("notify_url", "ftp://a", "notify_url must be an http or https URL"),
    ("shared_state", "memcached://a", "shared_state 'memcached://a' must look like redis://"),
    ("replica_tls_cert", "a.pem", "replica_tls_cert needs replica_tls_key, too"),
    ("replica_tls_key", "a.pem", "replica_tls_key needs replica_tls_cert, too"),
    ("max_body_bytes", 0, "max_body_bytes must be at least 1, got 0"),
    ("replica", ["http://a/b"], "replica 'http://a/b': "),
    ("replica", ["http://a", "a:80"], "the replica http://a is given twice"),
    ("replica", ["http://a;weight=-1"], "replica 'http://a;weight=-1': "),
    ("discovery", ["consul://"], "discovery 'consul://'"),
    ("discovery", ["etcd://h/p?x=1"], "discovery 'etcd://h/p?x=1'"),
]


@pytest.mark.parametrize(("name", "value", "message"), ERRORS, ids=[f"{name}-{value}" for name, value, _ in ERRORS])
def test_an_error_names_the_setting_and_the_value(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_router_options({name: value})
    assert caught.value.message.startswith(message), caught.value.message
    assert caught.value.details["option"] == name


@pytest.mark.parametrize("text", ["foo", "ftp://a", "http://a", "file:"])
def test_a_source_that_is_none_is_rejected_at_the_start(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^discovery '{text}'") as caught:
        discovery_sources({"discovery": [text]})
    assert caught.value.details["option"] == "discovery"


def test_a_router_needs_replicas_or_a_source() -> None:
    with pytest.raises(ConfigError, match="a router needs replicas: name them by --replica http://HOST:PORT, or"):
        discovery_sources({})
    validate_router_options({})  # the flags may name them


def test_sources_keep_their_order_with_the_named_replicas_first(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("[]", encoding="utf-8")
    sources = discovery_sources({"discovery": [f"file:{file}", "consul://h/s"], "replica": ["http://a"]})
    assert [type(source) for source in sources] == [StaticSource, FileSource, ConsulSource]


def test_validation_reads_no_file() -> None:
    options = {name: VALUES[name] for name in ("replica_key_file", "replica_tls_ca")}
    validate_router_options({**options, "discovery": ["file:nowhere.yaml", "kubernetes://a/b"]})


def test_the_router_has_the_settings_of_the_server_that_are_not_about_a_model() -> None:
    names = {setting.name for setting in settings.ROUTER_SERVER}
    assert {"host", "port", "key_file", "tls_cert", "drain_timeout", "tenant_tokens_per_minute"} <= names
    assert not names & {"served_model_name", "tool_call_parser", "drain_handover"} - {"drain_handover"}
    assert not names & {setting.name for setting in ROUTER}
