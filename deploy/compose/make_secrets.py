"""Make the keys and passwords of compose.yaml: `python3 make_secrets.py [FOLDER]`. It changes no file that is there.

The folder can be entered by its owner alone. The files in it can be read by every user, because the users of the
containers are others; a container sees only the files that compose.yaml gives it.
"""

import hashlib
import secrets
import shutil
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "secrets"


def make() -> dict[str, str]:
    """Return the content of each file, with new keys and passwords; `api_key` and `admin_key` are for people."""
    api_key, admin_key, replica_key, replica_admin_key = ("ck-" + secrets.token_urlsafe(32) for _ in range(4))
    redis_password, grafana_password = (secrets.token_urlsafe(32) for _ in range(2))
    return {
        "api_key": api_key,
        "admin_key": admin_key,
        "keys": f"default sha256:{digest(api_key)}\noperator sha256:{digest(admin_key)} admin",
        "replica_key": replica_key,
        "replica_admin_key": replica_admin_key,
        "replica_keys": "\n".join(
            (
                f"router sha256:{digest(replica_key)}",
                f"router-admin sha256:{digest(replica_admin_key)} admin",
                f"operator sha256:{digest(admin_key)} admin",
            )
        ),
        "redis_password": redis_password,
        "redis_conf": f"requirepass {redis_password}\nmasterauth {redis_password}",
        "grafana_password": grafana_password,
    }


def digest(key: str) -> str:
    """Return the SHA-256 of a key as a key file has it."""
    return hashlib.sha256(key.encode()).hexdigest()


def main(folder: Path = FOLDER) -> int:
    """Write the files, unless the folder has any; returns the exit code."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.stderr.write(f"{folder} has files already; remove the folder to make new ones\n")
        return 1
    whole = folder.parent / f"{folder.name}.new"  # a run that is ended in the middle leaves only this one
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir(mode=0o700)
    for name, text in make().items():
        (whole / name).write_text(text + "\n", encoding="utf-8")
        (whole / name).chmod(0o644)
    whole.rename(folder)
    sys.stdout.write(f"wrote {folder}; clients use the key in {folder / 'api_key'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
