"""Address: valid URLs, and errors in one sentence."""

import pytest

from chairlift.bench.server.server_address import Address
from chairlift.core.errors import ConfigError
from support_shares import for_each


@pytest.mark.parametrize(("url", "shown", "base"), [
    ("http://localhost", "http://localhost:80", ""), ("https://a.example/", "https://a.example:443", ""),
    ("http://[::1]:8000/v1/", "http://[::1]:8000", ""), ("http://h:1/x/v1", "http://h:1/x", "/x"),
])  # fmt: skip
def test_an_address(url: str, shown: str, base: str) -> None:
    address = Address.of(url)
    assert (address.url, address.base) == (shown, base)


@for_each("url", [
    "localhost:8000", "ftp://h", "http://", "http://h:70000", "http://h:x", "http://h/?q=1", "http://h/a b",
    "http://key@h", "http://h/\u00e4", "http://[::1",
])  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError):
        Address.of(url)
