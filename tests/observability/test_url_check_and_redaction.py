"""url_check_and_redaction: no password of a URL is in a text that others read."""

from chairlift.observability.url_check_and_redaction import is_http_url, without_user_info
from support_shares import for_each


@for_each(("text", "shown"), [
    ("http://u:p@h:9090: refused", "http://***@h:9090: refused"),
    ("https://token@h/a@b?c=d@e", "https://***@h/a@b?c=d@e"),
    ("http://u:p@ss@h and redis://:q@r/0", "http://***@h and redis://***@r/0"),
    ("http://h:80/a mail@example.com", "http://h:80/a mail@example.com"), ("no URL", "no URL"), ("", ""),
])  # fmt: skip
def test_user_and_password_are_hidden(text: str, shown: str) -> None:
    assert without_user_info(text) == shown


@for_each(("text", "is_url"), [
    ("http://h", True), ("https://u:p@h:1/a", True), ("ftp://h", False), ("http://", False), ("h:80", False),
    ("http://h:0", False), ("http://h:99999", False), ("http://[", False), ("", False),
])  # fmt: skip
def test_a_url_of_http_names_a_host_and_a_port_that_exists(text: str, is_url: bool) -> None:
    assert is_http_url(text) == is_url
