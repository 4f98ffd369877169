"""`chairlift token`: prints a token that a server with the same secret and settings accepts."""

import time
from pathlib import Path

import jwt
import pytest

from chairlift.cli.main import main
from chairlift.web.auth.credentials import SECRET_VARIABLE, CredentialSources
from chairlift.web.auth.jwt_verifier import JWTConfig
from chairlift.web.auth.principal import ADMIN, USER, Principal
from support_tokens import RSA_KEY, SECRET, jwks, public_jwk


@pytest.fixture
def secret_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    file = tmp_path / "jwt.secret"
    file.write_bytes(SECRET + b"\n")
    return str(file)


def create_token(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """Create a token; returns it and standard error."""
    assert main(["token", *words]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and SECRET.decode() not in out + err
    return out.strip(), err


def rejected(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["token", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def principal_of(token: str, secret_file: str, **config: str) -> Principal:
    sources = CredentialSources(jwt_secret_file=Path(secret_file), token_config=JWTConfig(**config))  # type: ignore[arg-type]
    return sources.read({}).authenticate(token.encode())


def test_a_server_with_the_same_secret_accepts_it(secret_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    token, err = create_token(capsys, "alice", "--jwt-secret-file", secret_file)
    assert principal_of(token, secret_file) == Principal("alice")
    claims = jwt.decode(token, SECRET, algorithms=["HS256"])
    assert claims["exp"] - claims["iat"] == 3600 and abs(claims["iat"] - time.time()) < 60
    assert claims.keys() == {"sub", "tenant", "roles", "iat", "exp"}
    assert err == time.strftime("the token expires at %Y-%m-%d %H:%M:%S UTC\n", time.gmtime(claims["exp"]))


def test_roles_lifetime_audience_and_issuer_are_in_it(secret_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    token, err = create_token(
        capsys, "ops", "--role", "admin", "--role", "user", "--lifetime", "30d", "--jwt-audience", "llm",
        "--jwt-issuer", "us", "--jwt-roles-claim", "a.r", "--jwt-tenant-claim", "org", "-q",
        "--jwt-secret-file", secret_file,
    )  # fmt: skip
    config = {"audience": "llm", "issuer": "us", "roles_claim": "a.r", "tenant_claim": "org"}
    assert principal_of(token, secret_file, **config) == Principal("ops", frozenset({ADMIN, USER}))
    claims = jwt.decode(token, SECRET, algorithms=["HS256"], audience="llm")
    assert claims["exp"] - claims["iat"] == 30 * 86_400 and err == ""


def test_an_admin_token_is_not_a_users(secret_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    token, _ = create_token(capsys, "ops", "--role", "admin", "--jwt-secret-file", secret_file)
    assert principal_of(token, secret_file) == Principal("ops", frozenset({ADMIN}))


def test_secret_and_settings_may_come_from_variables_and_the_servers_settings_file(
    secret_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(f"port: 8080\njwt_secret_file: {secret_file}\njwt_audience: llm\n", encoding="utf-8")
    by_file, _ = create_token(capsys, "alice", "-q", "--config", str(file))
    monkeypatch.setenv(SECRET_VARIABLE, SECRET.decode())
    by_variable, _ = create_token(capsys, "alice", "--jwt-audience", "llm")
    for token in (by_file, by_variable):
        assert principal_of(token, secret_file, audience="llm") == Principal("alice")


@pytest.mark.share(3)
@pytest.mark.parametrize(("words", "sentence"), [
    ([], "TENANT is required"), (["a b"], "tenant must have 1 to 128 characters"),
    (["a\n"], "tenant must have 1 to 128 characters"),
    (["a", "--lifetime", "0"], "--lifetime must be between 1 second and 3650 days, got 0 seconds"),
    (["a", "--lifetime", "3651d"], "--lifetime must be between 1 second and 3650 days"),
    (["a", "--lifetime", "soon"], "--lifetime must be a time such as 90s, 15m, 12h or 30d, got 'soon'"),
    (["a", "--role", "root"], "--role must be one of user, admin, got 'root'"),
    (["a", "--jwt-audience", ""], "--jwt-audience must not be empty"),
    (["a", "--jwt-secret-file", "nowhere"], "cannot read --jwt-secret-file nowhere: No such file or directory"),
    (["a", "--jwt-jwks-file", "x"], "unknown option --jwt-jwks-file"),
])  # fmt: skip
def test_invalid_input_is_one_sentence(
    secret_file: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in rejected(capsys, "--jwt-secret-file", secret_file, *words)


def test_a_secret_is_required_and_only_one(
    secret_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "set --jwt-secret-file or CHAIRLIFT_JWT_SECRET" in rejected(capsys, "alice")
    short = tmp_path / "short"
    short.write_text("x" * 31, encoding="utf-8")
    assert "has 31 bytes, HS256 needs at least 32" in rejected(capsys, "alice", "--jwt-secret-file", str(short))
    public = str(jwks(tmp_path, public_jwk(RSA_KEY)))
    assert "is a public key or a key pair" in rejected(capsys, "alice", "--jwt-secret-file", public)
    monkeypatch.setenv(SECRET_VARIABLE, SECRET.decode())
    assert "exclude each other" in rejected(capsys, "alice", "--jwt-secret-file", secret_file)
