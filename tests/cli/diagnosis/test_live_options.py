"""live_server: keys come from the environment and from the file of the replicas' key."""

import argparse
from pathlib import Path

import pytest

from chairlift.cli.diagnosis.live_options import live_server
from chairlift.cli.diagnosis.server_reader import Keys
from chairlift.core.errors import ConfigError
from support_shares import for_each


def arguments(**fields: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "url": "http://a:1",
            "interval": 3.0,
            "replica_key_file": None,
            "tls_ca": None,
            "tls_client_cert": None,
            "tls_client_key": None,
            **fields,
        }
    )


def test_replicas_get_the_key_of_the_file_or_that_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_API_KEY", "user")
    monkeypatch.setenv("CHAIRLIFT_ADMIN_KEY", "admin")
    reader, replica_keys, interval = live_server(arguments())
    assert reader.keys == replica_keys == Keys(api="user", admin="admin") and interval == 3.0
    (tmp_path / "key").write_text("other\n")
    reader, replica_keys, _ = live_server(arguments(replica_key_file=str(tmp_path / "key")))
    assert (reader.keys.api, replica_keys) == ("user", Keys(api="other", admin="admin"))


@for_each("fields", [
    {"interval": 0.0}, {"url": "a"}, {"replica_key_file": "/no/such/file"}, {"tls_ca": "/no/such/file"},
    {"tls_ca": __file__}, {"tls_client_cert": __file__, "tls_client_key": __file__},
    {"tls_client_cert": "/no/such/file", "tls_client_key": __file__},
])  # fmt: skip
def test_options_that_cannot_be_used_are_rejected(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        live_server(arguments(**fields))
