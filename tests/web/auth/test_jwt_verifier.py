"""JWTVerifier: what a token must contain, and the attacks on tokens that are known."""

import base64
import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from chairlift.core.errors import ConfigError
from chairlift.web.auth.jwt_keys import ES256, HS256, RS256, JWTKeys
from chairlift.web.auth.jwt_verifier import (
    MAX_TOKEN_BYTES,
    InvalidToken,
    JWTConfig,
    JWTVerifier,
    encode_token,
    is_token,
)
from chairlift.web.auth.principal import ADMIN, USER, Principal
from support_shares import for_each
from support_tokens import EC_KEY, OTHER_RSA_KEY, RSA_KEY, SECRET, jwks, public_jwk

CONFIG = JWTConfig(audience="chairlift", issuer="https://issuer.test", leeway=5)


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    return {"exp": now + 60, "aud": "chairlift", "iss": "https://issuer.test", "sub": "ana", **more}


def by_secret(**options: Any) -> JWTVerifier:
    return JWTVerifier(CONFIG if not options else JWTConfig(**options), JWTKeys.from_secret(SECRET))


def by_rsa(tmp_path: Path) -> JWTVerifier:
    return JWTVerifier(
        CONFIG, JWTKeys.from_jwks(jwks(tmp_path, public_jwk(RSA_KEY, "one"), public_jwk(OTHER_RSA_KEY, "two")))
    )


def encoded(value: bytes | dict[str, Any]) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed_by_hand(header: dict[str, Any], payload: dict[str, Any], key: bytes) -> bytes:
    """Sign with HMAC whatever the header says: libraries refuse to make such tokens."""
    content = f"{encoded(header)}.{encoded(payload)}"
    return f"{content}.{encoded(hmac.new(key, content.encode(), hashlib.sha256).digest())}".encode()


# -- tokens that are accepted --------------------------------------------------------------------------------------


def test_a_token_of_each_algorithm_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "ec").mkdir()
    by_ec = JWTVerifier(CONFIG, JWTKeys.from_jwks(jwks(tmp_path / "ec", public_jwk(EC_KEY))))
    one, two = (jwt.encode(claims(), key, RS256, {"kid": name})
                for key, name in ((RSA_KEY, "one"), (OTHER_RSA_KEY, "two")))  # fmt: skip
    for verifier, token in (
        (by_secret(), encode_token(SECRET, claims())), (by_rsa(tmp_path), one), (by_rsa(tmp_path), two),
        (by_ec, jwt.encode(claims(), EC_KEY, ES256)),
        (by_ec, jwt.encode(claims(), EC_KEY, ES256, {"kid": "the only key has no id"})),
    ):  # fmt: skip
        assert is_token(token.encode()) and verifier.verify(token.encode()) == Principal("ana")


@for_each(("more", "principal"), [
    ({"roles": ["user", "admin"]}, Principal("ana", frozenset({ADMIN, USER}))),
    ({"roles": "read admin"}, Principal("ana", frozenset({ADMIN}))),
    ({"roles": ["user", "other"]}, Principal("ana")), ({"tenant": "team-1"}, Principal("team-1")),
    ({"sub": None}, Principal("default")), ({"sub": "x" * 128}, Principal("x" * 128)),
    ({"sub": "auth0|7"}, Principal(f"sub-{hashlib.sha256(b'auth0|7').hexdigest()[:32]}")),
    ({"aud": ["other", "chairlift"]}, Principal("ana")),
])  # fmt: skip
def test_claims_give_tenant_and_scopes(more: dict[str, Any], principal: Principal) -> None:
    content = {name: value for name, value in claims(**more).items() if value is not None}
    assert by_secret().verify(encode_token(SECRET, content).encode()) == principal


def test_other_claims_can_hold_roles_and_tenant() -> None:
    verifier = by_secret(roles_claim="scope", tenant_claim="org")
    token = encode_token(SECRET, {"exp": time.time() + 9, "scope": "user", "org": "o", "roles": ["admin"]})
    assert verifier.verify(token.encode()) == Principal("o")


# -- tokens that are not accepted ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [
    {"exp": 1}, {"exp": 1_700_000_000}, {"exp": None}, {"exp": "soon"}, {"exp": 1e400},
    {"nbf": 2**32}, {"iat": 2**32}, {"aud": "another"}, {"aud": None}, {"aud": []},
    {"iss": "https://issuer.test/"},
    {"iss": None}, {"tenant": "a b"}, {"tenant": ""}, {"tenant": "x" * 129}, {"tenant": 7},
    {"roles": 7}, {"roles": [7]}, {"sub": 7},
], ids=str)  # fmt: skip
def test_a_wrong_claim_is_rejected(more: dict[str, Any]) -> None:
    content = {name: value for name, value in claims(**more).items() if value is not None}
    with pytest.raises(InvalidToken):
        by_secret().verify(signed_by_hand({"alg": HS256, "typ": "JWT"}, content, SECRET))


def test_an_audience_is_not_ignored_when_none_is_expected() -> None:
    with pytest.raises(InvalidToken, match="Audience"):
        by_secret(audience=None).verify(encode_token(SECRET, claims()).encode())


def test_the_leeway_is_in_seconds() -> None:
    token = encode_token(SECRET, {"exp": int(time.time()) - 20}).encode()
    assert by_secret(leeway=60).verify(token) == Principal("default")
    with pytest.raises(InvalidToken, match="Expired"):
        by_secret(leeway=5).verify(token)


@pytest.mark.parametrize("roles", [[], ["guest"], "", "administrator", "ADMIN"], ids=str)
def test_a_token_without_a_known_role_is_valid_but_has_no_scope(roles: Any) -> None:
    assert by_secret().verify(encode_token(SECRET, claims(roles=roles)).encode()).scopes == frozenset()


def test_a_claim_inside_another_one_is_found_by_its_path() -> None:
    verifier = by_secret(roles_claim="realm_access.roles", tenant_claim="https://x.test/tenant")
    nested = {"exp": time.time() + 9, "realm_access": {"roles": ["admin"]}, "https://x.test/tenant": "o"}
    assert verifier.verify(encode_token(SECRET, nested).encode()) == Principal("o", frozenset({ADMIN}))
    for other in ({"realm_access": ["roles"]}, {"realm_access": {}}, {}):
        token = encode_token(SECRET, {"exp": time.time() + 9, **other})
        assert verifier.verify(token.encode()) == Principal("default")


def _unsigned(algorithm: str) -> Callable[[], bytes]:
    return f"{encoded({'alg': algorithm, 'typ': 'JWT'})}.{encoded(claims())}.".encode


def _with_header(**more: Any) -> Callable[[], bytes]:
    return lambda: signed_by_hand({"alg": HS256, "typ": "JWT", **more}, claims(), SECRET)


def _signed_with_public_key() -> bytes:
    pem = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return signed_by_hand({"alg": HS256, "typ": "JWT", "kid": "one"}, claims(), pem)


ATTACKS: dict[str, Callable[[], bytes]] = {
    "alg none": _unsigned("none"), "alg None": _unsigned("None"), "alg nOnE": _unsigned("nOnE"),
    "no signature": _unsigned(HS256),
    "alg HS384": _with_header(alg="HS384"), "alg list": _with_header(alg=[HS256]),
    "alg missing": _with_header(alg=None),
    "unknown crit": _with_header(crit=["x"], x=1), "crit exp": _with_header(crit=["exp"]),
    "jku": _with_header(jku="http://127.0.0.1:9/jwks"), "jwk": _with_header(jwk={"kty": "oct", "k": "AAAA"}),
    "x5u": _with_header(x5u="http://127.0.0.1:9/cert"), "b64": _with_header(b64=False),
    "kid number": _with_header(kid=7), "other secret": lambda: encode_token(b"x" * 32, claims()).encode(),
    "empty secret": lambda: signed_by_hand({"alg": HS256}, claims(), b""),
    "two parts": encode_token(SECRET, claims()).rpartition(".")[0].encode,
    "four parts": lambda: encode_token(SECRET, claims()).encode() + b".e30",
    "not ascii": lambda: encode_token(SECRET, claims()).encode() + "é".encode(),
    "line break": lambda: encode_token(SECRET, claims()).encode() + b"\n",
    "nested": f"{encoded(b'[' * 3000)}.{encoded(claims())}.AAAA".encode,
    "list as claims": lambda: signed_by_hand({"alg": HS256}, [1], SECRET),  # type: ignore[arg-type]
}  # fmt: skip


@for_each("name", ATTACKS)
def test_an_attack_is_rejected(name: str) -> None:
    with pytest.raises(InvalidToken):
        by_secret().verify(ATTACKS[name]())


def test_a_public_key_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(InvalidToken, match="this server uses RS256"):
        by_rsa(tmp_path).verify(_signed_with_public_key())


@pytest.mark.parametrize(
    "key_id", ["../../../../dev/null", "one\x00", "two' OR '1'='1", "", None, 0, ["one"]], ids=repr
)
def test_a_key_id_is_looked_up_and_never_opened(tmp_path: Path, key_id: Any) -> None:
    content = f"{encoded({'alg': RS256, 'kid': key_id})}.{encoded(claims())}"
    with pytest.raises(InvalidToken):
        by_rsa(tmp_path).verify(f"{content}.{encoded(b'x' * 256)}".encode())


def _by_keys(tmp_path: Path, *ids: str | None) -> JWTVerifier:
    keys = dict(zip((RSA_KEY, OTHER_RSA_KEY), ids, strict=False))
    return JWTVerifier(CONFIG, JWTKeys.from_jwks(jwks(tmp_path, *(public_jwk(key, id) for key, id in keys.items()))))


UNKNOWN_IDS = [
    "/etc/passwd", "../../dev/null", "keys/../one", "..\\secret", "C:\\keys\\one", "~/key", "file:key", "https://a.test/k",
    "..", "a\nb", "\x00", "x" * 257, "",
]  # fmt: skip


@pytest.mark.parametrize("key_id", UNKNOWN_IDS, ids=repr)
def test_a_key_id_that_is_a_path_or_not_printable_fits_no_key(tmp_path: Path, key_id: str) -> None:
    """Case 55 of the HTTP contract: also not the only key, which has no id of its own."""
    with pytest.raises(InvalidToken, match=r"kid|no key has the id"):
        _by_keys(tmp_path, None).verify(jwt.encode(claims(), RSA_KEY, RS256, {"kid": key_id}).encode())
    with pytest.raises(InvalidToken, match=r"kid|no key has the id"):
        by_secret().verify(signed_by_hand({"alg": HS256, "kid": key_id}, claims(), SECRET))


@pytest.mark.parametrize("key_id", ["two", "One", "one ", "../one"])
def test_a_key_id_that_no_key_has_is_rejected_also_with_a_single_key(tmp_path: Path, key_id: str) -> None:
    token = jwt.encode(claims(), RSA_KEY, RS256, {"kid": key_id}).encode()
    with pytest.raises(InvalidToken, match="no key has the id"):
        _by_keys(tmp_path, "one").verify(token)
    with pytest.raises(InvalidToken, match="no key has the id"):
        _by_keys(tmp_path, None, "one").verify(token)


def test_a_token_without_a_key_id_fits_the_key_without_one_or_a_single_key(tmp_path: Path) -> None:
    token = jwt.encode(claims(), RSA_KEY, RS256).encode()
    for ids in (("one",), (None,), (None, "two")):
        assert _by_keys(tmp_path, *ids).verify(token) == Principal("ana"), ids
    with pytest.raises(InvalidToken, match="no kid, and several keys have ids"):
        _by_keys(tmp_path, "one", "two").verify(token)


def test_a_key_id_is_compared_as_text_also_with_slashes(tmp_path: Path) -> None:
    """Base64 ids have slashes."""
    for key_id in ("/x+y=", "a/b", "key one"):
        token = jwt.encode(claims(), RSA_KEY, RS256, {"kid": key_id}).encode()
        assert _by_keys(tmp_path, key_id).verify(token) == Principal("ana")


def test_the_key_of_another_id_is_not_tried(tmp_path: Path) -> None:
    with pytest.raises(InvalidToken, match="Signature"):
        by_rsa(tmp_path).verify(jwt.encode(claims(), RSA_KEY, RS256, {"kid": "two"}).encode())


def test_a_long_token_is_not_parsed() -> None:
    token = encode_token(SECRET, claims(more="x" * MAX_TOKEN_BYTES)).encode()
    with pytest.raises(InvalidToken, match=f"{len(token)} bytes, the limit is {MAX_TOKEN_BYTES}"):
        by_secret().verify(token)


ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \x00\xff"


def _mutated(token: bytes, rng: random.Random) -> bytes:
    """Change, drop or add characters anywhere."""
    changed = bytearray(token)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place, action = rng.randrange(len(changed)), rng.randrange(3)
        if action == 0:
            changed[place] = rng.choice(ALPHABET)
        elif action == 1:
            del changed[place]
        else:
            changed.insert(place, rng.choice(ALPHABET))
    return bytes(changed)


@pytest.mark.share(1)
@pytest.mark.parametrize(("algorithm", "count"), [(HS256, 10_000), (RS256, 1_000), (ES256, 1_000)])
def test_mutated_tokens_are_rejected(tmp_path: Path, algorithm: str, count: int) -> None:
    """Every token but the one that was signed, also another spelling of the same signature."""
    key = {HS256: SECRET, RS256: RSA_KEY, ES256: EC_KEY}[algorithm]
    verifier = by_secret()
    if algorithm != HS256:
        verifier = JWTVerifier(CONFIG, JWTKeys.from_jwks(jwks(tmp_path, public_jwk(key))))
    token = jwt.encode(claims(), key, algorithm).encode()  # type: ignore[arg-type]
    assert verifier.verify(token) == Principal("ana")
    rng = random.Random(5)
    mutated = {token[:-1] + bytes([last]) for last in ALPHABET}
    while len(mutated) <= count:
        mutated.add(_mutated(token, rng))
    for each in mutated - {token}:
        with pytest.raises(InvalidToken):
            verifier.verify(each)


@pytest.mark.parametrize("leeway", [-1.0, 601.0, float("nan")])
def test_a_leeway_out_of_range_is_an_error(leeway: float) -> None:
    with pytest.raises(ConfigError, match="jwt_leeway must be between 0 and 600 seconds"):
        JWTConfig(leeway=leeway)


@pytest.mark.parametrize("name", ["audience", "issuer", "roles_claim", "tenant_claim"])
def test_an_empty_name_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"jwt_{name} must not be empty"):
        JWTConfig(**{name: ""})  # type: ignore[arg-type]
