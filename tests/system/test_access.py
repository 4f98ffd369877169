"""Access to a real server: tokens and their rotation, host names, and client certificates."""

import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from chairlift.web.auth.jwt_verifier import encode_token
from support_bad_input import exchange, rejection_message
from support_certificates import CertificateAuthority
from support_faults import LONG_REQUEST, SLOW_ENGINE
from support_process import wait_until
from support_server import CHAT, COMPLETIONS, HELLO, Server, fake_server
from support_tokens import EC_KEY, OTHER_RSA_KEY, RSA_KEY, SECRET, jwks, public_jwk

CLAIMS: dict[str, Any] = {"exp": 2**40, "aud": "llm", "sub": "ana"}
CONFIG = {"audience": "llm"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def status_of(server: Server, token: str, path: str = "/v1/models") -> int:
    return httpx.get(server.url + path, headers=bearer(token)).status_code


# -- tokens --------------------------------------------------------------------------------------------------------


def replace(file: Path, content: bytes) -> None:
    """Replace a file as secret managers do: never half written."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.replace(file)


@pytest.mark.full
def test_a_new_secret_applies_on_sighup_and_open_streams_go_on(tmp_path: Path) -> None:
    file = tmp_path / "jwt.secret"
    file.write_bytes(SECRET)
    new_secret = SECRET[::-1]
    old, new = encode_token(SECRET, CLAIMS), encode_token(new_secret, CLAIMS)
    with fake_server(SLOW_ENGINE, tokens={"jwt_secret_file": str(file)}, token_config=CONFIG) as server:
        assert (status_of(server, old), status_of(server, new)) == (200, 401)
        body = {**LONG_REQUEST, "stream": True, "max_tokens": 100}
        with httpx.stream("POST", server.url + COMPLETIONS, json=body, headers=bearer(old), timeout=60) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            replace(file, b"too short")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "has 9 bytes, HS256 needs at least 32" in server.log)
            assert "the old keys, certificates and limits stay" in server.log
            assert (status_of(server, old), status_of(server, new)) == (200, 401)
            replace(file, new_secret + b"\n")
            server.process.send_signal(signal.SIGHUP)
            wait_until(lambda: status_of(server, new) == 200)
            assert status_of(server, old) == 401
            assert [line for line in lines if line][-1] == "data: [DONE]"


@pytest.mark.full
def test_new_public_keys_apply_on_sighup_and_a_broken_file_keeps_the_old_ones(tmp_path: Path) -> None:
    file = jwks(tmp_path, public_jwk(RSA_KEY, "one"))
    one = jwt.encode(CLAIMS, RSA_KEY, "RS256", {"kid": "one"})
    two = jwt.encode(CLAIMS, OTHER_RSA_KEY, "RS256", {"kid": "two"})
    elliptic = jwt.encode(CLAIMS, EC_KEY, "ES256")
    with fake_server(tokens={"jwt_jwks_file": str(file)}, token_config=CONFIG) as server:
        assert [status_of(server, token) for token in (one, two, elliptic)] == [200, 401, 401]
        replace(file, b'{"keys": [')
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "jwks.json is not JSON" in server.log)
        assert [status_of(server, token) for token in (one, two)] == [200, 401]
        both = {"keys": [public_jwk(RSA_KEY, "one"), public_jwk(OTHER_RSA_KEY, "two")]}
        replace(file, json.dumps(both).encode())
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status_of(server, two) == 200)
        assert status_of(server, one) == 200, "keys overlap while their tokens are replaced"
        replace(file, json.dumps({"keys": [public_jwk(EC_KEY)]}).encode())
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status_of(server, elliptic) == 200)
        assert [status_of(server, token) for token in (one, two)] == [401, 401]


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("tokens") / "jwt.secret"
    file.write_bytes(SECRET)
    with fake_server(tokens={"jwt_secret_file": str(file)}, token_config=CONFIG, log_level=20) as server:
        yield server


@pytest.mark.full
def test_55_bad_tokens_get_one_message_and_their_reasons_are_in_the_log(token_server: Server) -> None:
    bad = {
        "Expired": encode_token(SECRET, {**CLAIMS, "exp": 1}),
        "ImmatureSignature": encode_token(SECRET, {**CLAIMS, "nbf": 2**40}),
        "MissingRequiredClaim": encode_token(SECRET, {"aud": "llm"}),
        "InvalidAudience": encode_token(SECRET, {**CLAIMS, "aud": "another"}),
        "InvalidSignature": encode_token(b"x" * 32, CLAIMS), "the header has jku": jwt.encode(
            CLAIMS, SECRET, "HS256", {"jku": "http://127.0.0.1:9/keys"}),
        "the algorithm is 'none'": jwt.encode(CLAIMS, None, "none"),
        "the algorithm is 'RS256'": jwt.encode(CLAIMS, RSA_KEY, "RS256", {"kid": "../../../../dev/null"}),
        "a token of": encode_token(SECRET, {**CLAIMS, "x": "x" * 8192}),
    }  # fmt: skip
    messages = set()
    for reason, token in bad.items():
        for path in ("/v1/models", "/admin/state"):
            messages.add(rejection_message(httpx.get(token_server.url + path, headers=bearer(token)), 401))
        assert f"rejected: a token: {reason}" in token_server.log, reason
        assert token not in token_server.log
    assert messages == {"a valid API key is needed: Authorization: Bearer KEY"}
    huge = httpx.get(token_server.url + "/v1/models", headers=bearer("eyJ" + "x" * 10**6 + ".x.x"))
    assert huge.status_code in (401, 431)


def test_64_the_roles_of_a_token_decide_what_it_may_use(token_server: Server) -> None:
    user, admin, none = (encode_token(SECRET, {**CLAIMS, "roles": roles}) for roles in (["user"], ["admin"], []))
    statuses = [[status_of(token_server, token, path) for path in ("/v1/models", "/admin/state", "/livez")]
                for token in (user, admin, none)]  # fmt: skip
    assert statuses == [[200, 403, 200], [403, 200, 200], [403, 403, 200]]


@pytest.mark.full
def test_25_and_55_no_request_makes_the_server_open_a_connection_or_a_file(
    token_server: Server, tmp_path: Path
) -> None:
    """An address in an image, a schema or a token's header is never fetched, and a path never opened."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # a process that opens it hangs
    token = bearer(encode_token(SECRET, CLAIMS))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        for target in (address, pipe.as_uri(), str(pipe)):
            image = {"type": "image_url", "image_url": {"url": target}}
            bodies = (
                {**HELLO, "messages": [{"role": "user", "content": [image]}]},
                {**HELLO, "response_format": {"type": "json_schema", "json_schema": {
                    "name": "x", "strict": True, "schema": {"$ref": target}}}},
            )  # fmt: skip
            for body in bodies:
                rejection_message(httpx.post(token_server.url + CHAT, json=body, headers=token), 400)
            for header in ({"jku": target}, {"x5u": target}, {"kid": target, "jku": target}):
                forged = bearer(jwt.encode(CLAIMS, SECRET, "HS256", header))
                rejection_message(httpx.get(token_server.url + "/v1/models", headers=forged), 401)
        with pytest.raises(BlockingIOError):
            listener.accept()


# -- host names ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyless_server() -> Iterator[Server]:
    with fake_server(server={"allowed_hosts": ["proxy.example"]}) as server:
        yield server


def post_as(server: Server, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + CHAT, json=HELLO, headers=named)


@pytest.mark.full
def test_a_rebound_name_gets_403_that_names_the_flag(keyless_server: Server) -> None:
    message = rejection_message(post_as(keyless_server, host="evil.example"), 403, code="forbidden")
    assert "'evil.example'" in message and "--allowed-host" in message
    for path in ("/v1/models", "/metrics", "/load", "/docs", "/version", "/nowhere", "/admin/state"):
        response = httpx.get(keyless_server.url + path, headers={"host": "evil.example:8000"})
        rejection_message(response, 403, code="forbidden")


def test_17_a_forged_host_is_refused_and_never_part_of_the_path(keyless_server: Server) -> None:
    for host in ("x/?", "a/v1/models?", "localhost/livez?", "localhost#", "user@localhost"):
        response = httpx.get(keyless_server.url + "/v1/models", headers={"host": host})
        assert response.status_code in (400, 403), host


def test_names_of_the_machine_and_allowed_names_are_served(keyless_server: Server) -> None:
    port = keyless_server.port
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "proxy.example"):
        assert post_as(keyless_server, host=host).status_code == 200, host
    without = exchange(keyless_server, b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert without.startswith(b"HTTP/1.1 200"), "a request without the header is no browser's"


def test_probes_by_the_address_of_a_pod_are_answered(keyless_server: Server) -> None:
    for path in ("/livez", "/readyz", "/health", "/ping"):
        assert httpx.get(keyless_server.url + path, headers={"host": "10.42.0.17:8000"}).status_code == 200


def test_62_a_page_of_another_site_cannot_post(keyless_server: Server) -> None:
    for headers in (
        {"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"},
        {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
    ):  # fmt: skip
        message = rejection_message(post_as(keyless_server, **headers), 403, code="forbidden")
        assert "--cors-origin" in message
    own_page = {"origin": keyless_server.url, "sec_fetch_site": "same-origin"}
    assert post_as(keyless_server, **own_page).status_code == 200
    preflight = httpx.options(keyless_server.url + CHAT, headers={
        "origin": "https://evil.example", "access-control-request-method": "POST"})  # fmt: skip
    assert preflight.status_code == 405 and "access-control-allow-origin" not in preflight.headers


# -- client certificates -------------------------------------------------------------------------------------------


def test_a_client_needs_a_certificate_that_the_ca_has_signed(tmp_path: Path) -> None:
    authority, stranger = CertificateAuthority(tmp_path, "authority"), CertificateAuthority(tmp_path, "stranger")
    certificate, key = authority.issue("server")
    tls = {"certificate": str(certificate), "key": str(key), "client_ca": str(authority.file)}

    def context(pair: tuple[Path, Path] | None, version: ssl.TLSVersion) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(authority.file))
        made.maximum_version = version
        if pair is not None:
            made.load_cert_chain(*pair)
        return made

    good, bad = authority.issue("client"), stranger.issue("intruder")
    with fake_server(tls=tls) as server:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with httpx.Client(verify=context(good, version), base_url=server.url) as http:
                assert http.post(CHAT, json=HELLO).status_code == 200
            for pair in (None, bad):
                with httpx.Client(verify=context(pair, version), base_url=server.url) as http:
                    for path in ("/v1/models", "/livez"):
                        with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
                            http.get(path)
        with httpx.Client(verify=context(good, ssl.TLSVersion.TLSv1_3), base_url=server.url) as http:
            assert http.get("/v1/models").status_code == 200, "handshakes that failed disturb nobody"
        authority.file.write_bytes(authority.file.read_bytes() + stranger.file.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "keys and certificates were read again" in server.log)
        with httpx.Client(verify=context(bad, ssl.TLSVersion.TLSv1_3), base_url=server.url) as http:
            assert http.get("/v1/models").status_code == 200, "a new CA is trusted after SIGHUP"
        assert server.stop() == 0 and "Traceback" not in server.log
