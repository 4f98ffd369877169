"""Credentials and CredentialSources: where keys and tokens come from, and which combinations are errors."""

from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.auth.api_keys import KeyRing, key_line, read_keys
from chairlift.web.auth.credentials import SECRET_VARIABLE, Credentials, CredentialSources, InvalidCredential
from chairlift.web.auth.jwt_keys import ES256, HS256, RS256
from chairlift.web.auth.jwt_verifier import JWTConfig, encode_token
from chairlift.web.auth.principal import Principal
from support_tokens import EC_KEY, RSA_KEY, SECRET, jwks, public_jwk

CLAIMS = {"exp": 2**40, "sub": "ana"}
TOKEN = encode_token(SECRET, CLAIMS).encode()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    return file


def test_a_secret_comes_from_a_file_or_the_environment(secret_file: Path) -> None:
    by_file = CredentialSources(jwt_secret_file=secret_file, jwt_algorithm=HS256).read({})
    by_variable = CredentialSources().read({SECRET_VARIABLE: SECRET.decode()})
    for credentials in (by_file, by_variable):
        assert credentials.are_required and credentials.has_admin
        assert credentials.authenticate(TOKEN) == Principal("ana")


def test_public_keys_come_from_a_file(tmp_path: Path) -> None:
    credentials = CredentialSources(jwt_jwks_file=jwks(tmp_path, public_jwk(EC_KEY)), jwt_algorithm=ES256).read({})
    assert credentials.tokens is not None and credentials.tokens.keys.algorithm == ES256
    with pytest.raises(InvalidCredential, match=r"a token: .*this server uses ES256"):
        credentials.authenticate(TOKEN)


def test_without_token_keys_a_token_is_an_unknown_key() -> None:
    assert CredentialSources().read({}) == Credentials()
    for credential in (TOKEN, b"", b"x", b"x" * 1000):
        with pytest.raises(InvalidCredential, match=f"an unknown key of {len(credential)} bytes"):
            Credentials(read_keys(None, {"CHAIRLIFT_API_KEY": "k"})).authenticate(credential)


def test_a_key_that_looks_like_a_token_is_still_a_key(tmp_path: Path, secret_file: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(key_line("eyJ.a.b", "alice"), encoding="utf-8")
    credentials = CredentialSources(key_file=file, jwt_secret_file=secret_file).read({})
    assert credentials.authenticate(b"eyJ.a.b") == Principal("alice")
    assert credentials.authenticate(TOKEN) == Principal("ana")


def test_no_keys_are_required_without_any() -> None:
    assert not Credentials(KeyRing()).are_required and not Credentials().has_admin


NOWHERE = Path("nowhere")


@pytest.mark.parametrize(("sources", "environ", "message"), [
    ({"jwt_secret_file": NOWHERE, "jwt_jwks_file": NOWHERE}, {}, "jwt_secret_file and jwt_jwks_file exclude"),
    ({"jwt_secret_file": NOWHERE, "jwt_algorithm": RS256}, {}, "jwt_algorithm RS256 needs public keys"),
    ({"jwt_algorithm": ES256}, {SECRET_VARIABLE: SECRET.decode()}, "jwt_algorithm ES256 needs public keys"),
    ({"jwt_jwks_file": NOWHERE, "jwt_algorithm": HS256}, {}, "jwt_algorithm HS256 needs a secret"),
    ({"jwt_secret_file": NOWHERE}, {SECRET_VARIABLE: "x"}, f"jwt_secret_file and {SECRET_VARIABLE} exclude"),
    ({"jwt_jwks_file": NOWHERE}, {SECRET_VARIABLE: "x"}, f"jwt_jwks_file and {SECRET_VARIABLE} exclude"),
    ({"jwt_algorithm": HS256}, {}, "jwt_algorithm needs jwt_secret_file, jwt_jwks_file or"),
    ({"token_config": JWTConfig(audience="a")}, {}, "jwt_audience needs jwt_secret_file"),
    ({"token_config": JWTConfig(leeway=1)}, {}, "jwt_leeway needs jwt_secret_file"),
    ({}, {SECRET_VARIABLE: "x" * 31}, f"{SECRET_VARIABLE} has 31 bytes, HS256 needs at least 32"),
    ({"jwt_secret_file": NOWHERE}, {}, "cannot read jwt_secret_file nowhere: No such file"),
    ({"jwt_jwks_file": NOWHERE}, {}, "cannot read jwt_jwks_file nowhere: No such file"),
], ids=lambda value: "" if isinstance(value, dict) else value[:40])  # fmt: skip
def test_a_wrong_combination_is_one_sentence(sources: dict, environ: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CredentialSources(**sources).read(environ)
    assert caught.value.message.startswith(message) and "\n" not in caught.value.message


def test_an_algorithm_that_the_public_keys_do_not_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"jwt_algorithm is ES256, but the keys in .* are for RS256"):
        CredentialSources(jwt_jwks_file=jwks(tmp_path, public_jwk(RSA_KEY)), jwt_algorithm=ES256).read({})
