"""JWTKeys: secrets and JWKS files that can be used, and those that cannot."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from chairlift.core.errors import ConfigError
from chairlift.web.auth.jwt_keys import ES256, HS256, MAX_FILE_BYTES, RS256, JWTKeys, check_secret, read_secret
from support_tokens import EC_KEY, OTHER_RSA_KEY, RSA_KEY, SECRET, jwks, public_jwk


def test_a_secret_is_the_content_of_its_file_without_the_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for content in (SECRET, SECRET + b"\n", SECRET + b"\r\n"):
        file.write_bytes(content)
        assert read_secret(file) == SECRET
    file.write_bytes(SECRET + b"\n\n")
    assert read_secret(file) == SECRET + b"\n"
    assert JWTKeys.from_secret(SECRET) == JWTKeys(HS256, {None: SECRET})


def test_a_short_secret_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has 31 bytes, HS256 needs at least 32"):
        check_secret(SECRET[:31], "CHAIRLIFT_JWT_SECRET")


PEM, DER = (
    RSA_KEY.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    for encoding in (Encoding.PEM, Encoding.DER)
)


@pytest.mark.parametrize("content", [
    PEM, b"\n" + PEM, DER, RSA_KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
    EC_KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), b'{"keys": [' + b"1," * 99,
    json.dumps({"keys": [public_jwk(EC_KEY)]}, indent=2).encode(),
    json.dumps({"alg": "ES256"} | public_jwk(EC_KEY)).encode(),
], ids=["pem", "pem after a newline", "der", "openssh rsa", "openssh ec", "jwks", "indented jwks", "jwk"])  # fmt: skip
def test_a_public_key_as_secret_is_an_error_that_does_not_show_it(tmp_path: Path, content: bytes) -> None:
    """Everyone who knows the public key could sign tokens."""
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"secret is a public key or a key pair, which HS256 cannot use") as caught:
        read_secret(file)
    assert caught.value.details == {"option": "jwt_secret_file"} and len(caught.value.message) < 300


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match=f"/dev/zero has more than {MAX_FILE_BYTES} bytes"):
        read_secret(Path("/dev/zero"))


def test_the_keys_decide_the_algorithm(tmp_path: Path) -> None:
    assert JWTKeys.from_jwks(jwks(tmp_path, public_jwk(RSA_KEY))).algorithm == RS256
    file = jwks(tmp_path, public_jwk(EC_KEY, "a"), public_jwk(ec.generate_private_key(ec.SECP256R1()), "b"))
    keys = JWTKeys.from_jwks(file, ES256)
    assert keys.algorithm == ES256 and set(keys.by_id) == {"a", "b"}
    with pytest.raises(ConfigError, match=r"^jwt_algorithm is RS256, but the keys in .*jwks\.json are for ES256$"):
        JWTKeys.from_jwks(file, RS256)


@pytest.mark.parametrize(("entries", "message"), [
    ([], "has no key for signatures"), ([public_jwk(RSA_KEY, use="enc")], "has no key for signatures"),
    ([public_jwk(RSA_KEY), public_jwk(EC_KEY, "e")], "has keys for ES256 and RS256"),
    ([public_jwk(RSA_KEY, "a"), public_jwk(OTHER_RSA_KEY, "a")], r"keys\[1\] needs a `kid` of its own"),
    ([public_jwk(RSA_KEY, "a\n")], r"keys\[0\] needs a `kid` of 1 to 256 printable characters, got 'a\\n'"),
    ([public_jwk(RSA_KEY, "a" * 257)], r"keys\[0\] needs a `kid` of 1 to 256 printable characters"),
    ([{"kty": "oct", "k": "AAAA"}], r"keys\[0\] is neither an RSA key nor an EC key on P-256"),
    ([{**public_jwk(EC_KEY), "crv": "P-384"}], "neither an RSA key nor"),
    ([public_jwk(RSA_KEY, alg="RS512")], "only RS256 is supported"),
    ([RSAAlgorithm.to_jwk(RSA_KEY, as_dict=True)], "holds a private key"),
    ([{"kty": "RSA", "n": "!", "e": "AQAB"}], "not a valid key"), ([{"kty": "EC", "crv": "P-256"}], "not a valid key"),
    ([public_jwk(rsa.generate_private_key(public_exponent=65537, key_size=1024))], "has 1024 bits, RS256 needs"),
])  # fmt: skip
def test_a_jwks_file_that_cannot_be_used_is_an_error(
    tmp_path: Path, entries: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        JWTKeys.from_jwks(jwks(tmp_path, *entries))
    assert "jwks.json" in caught.value.message


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": 1}', '{"keys": [1]}', "[" * 100_000], ids=lambda text: text[:12]
)
def test_a_file_that_is_no_jwks_is_an_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"jwks\.json"):
        JWTKeys.from_jwks(file)


def test_a_missing_jwks_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read jwt_jwks_file .*jwks\.json: No such file"):
        JWTKeys.from_jwks(tmp_path / "jwks.json")
