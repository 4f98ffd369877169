"""is_http_url, without_user_info: whether a text is a URL, and how a URL may stand in logs and reports."""

import re
from urllib.parse import urlsplit

_USER = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)


def is_http_url(text: str) -> bool:
    """Return whether a text is a URL of HTTP or HTTPS with a host, whose port can be connected to."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def without_user_info(text: str) -> str:
    """Return the text with *** in place of user name and password of each URL."""
    return _USER.sub(r"\g<scheme>***@", text) if "@" in text else text
