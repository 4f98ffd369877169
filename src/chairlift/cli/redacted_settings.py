"""shown_settings: the settings of a process for administrators and bug reports, without secrets.

Secrets stand in files and in the variables SECRETS, but a URL can have a password or a token, and an option of a
replica a key.
"""

import re
from collections.abc import Mapping
from typing import Any

from chairlift.cli.settings import settings

HIDDEN = "***"
SET, UNSET = "set", "unset"

_PATH_IS_SECRET = frozenset({"notify_url"})
"""Settings whose whole path may be a secret, as in the URLs of chat services."""

_URL = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^/?#\s]*@)?(?P<rest>[^\s?]*)(?P<query>\?\S*)?", re.IGNORECASE
)
_SECRET_OPTION = re.compile(r"^(--)?[\w-]*(key|token|secret|password)(?!s?[_-]?(file|per))\b.*?=", re.IGNORECASE)


def shown_settings(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of settings as JSON has them; of the secret variables only whether they are set."""
    shown = {name: without_secrets(value, name) for name, value in sorted(options.items())}
    return shown | {name: SET if environ.get(name) else UNSET for name in settings.SECRETS}


def without_secrets(value: Any, name: str) -> Any:
    """Return the value of the setting `name` as JSON has it, with *** in place of secrets."""
    if isinstance(value, str):
        return _hide_in_text(value, name)
    if isinstance(value, Mapping):
        return {str(key): without_secrets(each, name) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [without_secrets(each, name) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _hide_in_text(text: str, name: str) -> str:
    if match := _SECRET_OPTION.match(text):
        return match[0] + HIDDEN

    def hide(match: re.Match[str]) -> str:
        user, rest, query = match["user"], match["rest"], match["query"]
        if name in _PATH_IS_SECRET and "/" in rest:
            rest, query = rest.partition("/")[0] + "/" + HIDDEN, ""
        return match["scheme"] + (f"{HIDDEN}@" if user else "") + rest + (f"?{HIDDEN}" if query else "")

    return _URL.sub(hide, text)
