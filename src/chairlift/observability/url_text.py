"""url_text: texts with URLs, as they may stand in logs and reports."""

import re

_USER = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/?#\s@]*(@[^/?#\s@]*)*@", re.IGNORECASE)


def without_user_info(text: str) -> str:
    """Return the text with *** in place of user name and password of each URL."""
    return _USER.sub(r"\g<scheme>***@", text) if "@" in text else text
