"""Keys and JWKS files for tests of tokens."""

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

SECRET = b"0123456789abcdef0123456789abcdef"
RSA_KEY, OTHER_RSA_KEY = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: Any, key_id: str | None = None, **more: Any) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    entry = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**entry, **({} if key_id is None else {"kid": key_id}), **more}


def jwks(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": list(entries)}))
    return file
