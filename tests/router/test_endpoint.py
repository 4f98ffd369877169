"""Endpoint: two spellings of a URL are one; a URL that names no replica and a weight out of range are refused."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.endpoint import Endpoint, ReplicaKind, normalized_url
from support_shares import for_each


@for_each(
    ("written", "url"),
    [
        ("10.0.0.7:8000", "http://10.0.0.7:8000"),
        (" http://Host.Example:8000/ ", "http://host.example:8000"),
        ("HTTPS://host:443", "https://host"),
        ("http://host:80", "http://host"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("localhost", "http://localhost"),
    ],
)
def test_a_url_is_normalized(written: str, url: str) -> None:
    assert normalized_url(written) == url


@for_each(
    "written",
    [
        "",
        "http://",
        "ftp://host",
        "http://host:99999",
        "http://host:x",
        "http://host/v1",
        "http://a@host",
        "http://h?q=1",
        "http://h h",
        "http://h:0",
        "http://u:secret@host",
        "u:secret@host:99999",
    ],
)
def test_a_url_that_names_no_replica_is_refused_with_its_text_but_the_password(written: str) -> None:
    with pytest.raises(ConfigError, match=r"replica|port") as caught:
        normalized_url(written)
    assert "secret" not in caught.value.message and written.rpartition("@")[2] in caught.value.message


def test_two_spellings_are_one_endpoint() -> None:
    assert Endpoint.parse("HOST:80") == Endpoint.parse("http://host/")
    assert Endpoint.parse("host").kind is ReplicaKind.AUTO


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1001.0])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight of http://host must be between 0 and 1000"):
        Endpoint.parse("host", weight=weight)
