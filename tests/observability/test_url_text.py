"""url_text: no password of a URL is in a text that others read."""

import pytest

from chairlift.observability.url_text import without_user_info


@pytest.mark.parametrize(("text", "shown"), [
    ("http://u:p@h:9090: refused", "http://***@h:9090: refused"),
    ("https://token@h/a@b?c=d@e", "https://***@h/a@b?c=d@e"),
    ("http://u:p@ss@h and redis://:q@r/0", "http://***@h and redis://***@r/0"),
    ("http://h:80/a mail@example.com", "http://h:80/a mail@example.com"), ("no URL", "no URL"), ("", ""),
])  # fmt: skip
def test_user_and_password_are_hidden(text: str, shown: str) -> None:
    assert without_user_info(text) == shown
