"""server_options: each setting is a field of a config; which settings, keys and hosts are refused."""

import os
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.server_options import (
    credential_sources,
    credentials_reader,
    engine_queue_size,
    listen_address,
    server_config,
    validate_server_options,
)
from chairlift.cli.settings import settings
from chairlift.cli.settings.service_settings import REGISTRATION, TOKENS, TRACING
from chairlift.cli.settings.setting_declaration import Setting
from chairlift.core.errors import ConfigError
from chairlift.web.auth.api_keys import key_line
from chairlift.web.auth.jwt_verifier import JWTConfig
from chairlift.web.service.listen_address import ListenAddress
from support_shares import for_each


def test_every_setting_is_a_field_or_is_used_by_name() -> None:
    """Each server setting is a field of one config, or `serve` reads it by name."""
    by_name = {"host", "port", "served_model_name", "key_file", "insecure", "tls_cert", "tls_key", "tls_client_ca"}
    by_name |= {each.name for each in (*TOKENS, *REGISTRATION, *TRACING)}
    options = {each.name: _example(each) for each in settings.SERVER if each.name not in by_name}
    config = server_config(("m",), options)
    owners = (config, config.http, config.http.admission, config.http.tenant, config.http.files)
    for name, value in options.items():
        parts = [getattr(part, name) for part in owners if hasattr(part, name)]
        expected = Path(str(value)).absolute() if name == "files_folder" else value
        assert [expected if not isinstance(expected, list) else tuple(expected)] == parts, name


def _example(setting: Setting) -> object:
    if setting.name in (named := {"tool_call_parser": "hermes", "cors_origins": ["https://a.example"]}):
        return named[setting.name]
    texts = {"boolean": "true", "integer": "7", "number": "2.5", "num_bytes": "9MB"}
    name = getattr(setting.parse, "__name__", "")
    value = setting.parse(texts.get(name, "vllm"))
    return [value] if setting.is_repeatable else value


def test_a_port_out_of_range_is_rejected() -> None:
    with pytest.raises(ConfigError):
        listen_address({"port": -1})


@for_each(("options", "option"), [
    ({"tls_cert": "a.pem"}, "tls_cert"), ({"served_model_name": [""]}, "served_model_name"),
    ({"max_waiting_requests": -1}, "max_waiting_requests"), ({"max_queue_wait": float("nan")}, "max_queue_wait"),
    ({"tenant_max_open_requests": 0}, "tenant_max_open_requests"), ({"tool_call_parser": "x"}, "tool_call_parser"),
    ({"tls_client_ca": "ca.pem"}, "tls_client_ca"),
    ({"jwt_secret_file": "a", "jwt_jwks_file": "b"}, "jwt_jwks_file"), ({"jwt_leeway": -1.0}, "jwt_leeway"),
    ({"jwt_secret_file": "a", "jwt_algorithm": "RS256"}, "jwt_algorithm"), ({"jwt_audience": ""}, "jwt_audience"),
    ({"jwt_jwks_file": "a", "jwt_algorithm": "HS256"}, "jwt_algorithm"),
    ({"otlp_endpoint": "collector:4318"}, "otlp_endpoint"), ({"trace_sample_ratio": 2.0}, "trace_sample_ratio"),
    ({"advertise_url": "http://10.0.0.7:8000"}, "advertise_url"), ({"register": "etcd://h"}, "register"),
])  # fmt: skip
def test_invalid_server_settings_are_rejected(options: dict[str, object], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_server_options(options)
    assert caught.value.details["option"] == option


def test_the_web_page_is_on_unless_it_is_switched_off() -> None:
    assert server_config(("m",), {}).http.ui and not server_config(("m",), {"ui": False}).http.ui
    for command in ("serve", "router", "fleet"):
        assert build_parser([command]).parse_args([command, "--no-ui"]).ui is False


def test_server_settings_may_be_absent() -> None:
    validate_server_options({})
    validate_server_options({"tls_cert": "nowhere.pem", "tls_key": "nowhere.pem"})  # the files are read later


def test_every_setting_of_tokens_reaches_its_source() -> None:
    """A setting that is dropped would leave a check out."""
    files = {"key_file": "k", "jwt_jwks_file": "j"}
    config = {"audience": "a", "issuer": "i", "roles_claim": "r", "tenant_claim": "t", "leeway": 5.0}
    options = {**files, "jwt_algorithm": "ES256", **{f"jwt_{name}": value for name, value in config.items()}}
    assert {each.name for each in TOKENS} == options.keys() - {"key_file"} | {"jwt_secret_file"}
    sources = credential_sources(options)
    assert dict(sources.files()) == {Path("k"): "key_file", Path("j"): "jwt_jwks_file"}
    assert sources.jwt_algorithm == "ES256" and sources.token_config == JWTConfig(**config)  # type: ignore[arg-type]
    assert credential_sources({"jwt_secret_file": "s"}).jwt_secret_file == Path("s")


def test_the_ca_of_clients_is_part_of_the_listen_address() -> None:
    address = listen_address({"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"})
    assert address.client_ca == Path("a") and listen_address({"tls_cert": "c", "tls_key": "k"}).client_ca is None


@pytest.mark.parametrize(("server", "engine", "size"), [
    ({}, {}, (1024 + 256) * 128), ({"max_waiting_requests": 3}, {"max_running_requests": 2}, 5 * 128),
    ({"max_waiting_requests": 0}, {"max_running_requests": 1}, 128), ({}, {"max_queue_size": 2000}, 2000),
])  # fmt: skip
def test_the_engine_has_room_for_every_choice_that_the_server_admits(
    server: dict[str, int], engine: dict[str, int], size: int
) -> None:
    assert engine_queue_size(server, engine) == size


def test_an_engine_queue_below_the_admission_queue_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"max_queue_size is 9 sequences, less than max_waiting_requests .10."):
        engine_queue_size({"max_waiting_requests": 10}, {"max_queue_size": 9})


def test_keys_are_read_again_but_not_from_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("one", "a") + "\n", encoding="utf-8")
    read = credentials_reader({"key_file": str(file)}, ListenAddress(host="0.0.0.0"), {}, [])
    assert read().authenticate(b"one").tenant == "a"
    file.write_text(key_line("two", "b") + "\n", encoding="utf-8")
    assert read().authenticate(b"two").tenant == "b"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="is not a regular file, so it cannot be read again"):
        read()


@pytest.mark.parametrize(("options", "host", "keys", "is_allowed"), [
    ({}, "0.0.0.0", [], False), ({}, "::", [], False), ({}, "127.0.0.1", [], True), ({}, "0.0.0.0", ["k"], True),
    ({"insecure": True}, "0.0.0.0", [], True),
])  # fmt: skip
def test_an_address_that_others_reach_needs_keys(
    options: dict[str, object], host: str, keys: list[str], is_allowed: bool
) -> None:
    read = credentials_reader(options, ListenAddress(host=host), {}, keys)
    if is_allowed:
        assert read().are_required is bool(keys)
        return
    with pytest.raises(ConfigError, match=f"host {host} is not a loopback address and needs API keys") as caught:
        read()
    assert caught.value.details["option"] == "host"


def test_client_certificates_are_as_good_as_keys() -> None:
    listening = ListenAddress(host="0.0.0.0", certificate=Path("c"), key=Path("k"), client_ca=Path("ca"))
    assert not credentials_reader({}, listening, {}, [])().are_required
