"""ignored_fields_header: the response header that names the fields of a request that had no effect."""

from collections.abc import Sequence

from chairlift.core.validation import invalid_param
from chairlift.web.error_responses import Header

IGNORED_HEADER = b"x-ignored-parameters"
MAX_CHARS = 1024
MAX_NAMES = 256
MAX_NAME_CHARS = 160


def ignored_fields_header(names: Sequence[str], *, is_strict: bool = False) -> list[Header]:
    """Return the header, none without names. Raises InvalidRequest if the service is strict."""
    if not names:
        return []
    value = ", ".join(map(_header_word, names[:MAX_NAMES]))[:MAX_CHARS]
    if is_strict:
        raise invalid_param(names[0][:64], f"has no effect, and this server rejects such fields: {value}")
    return [(IGNORED_HEADER, value.encode())]


def _header_word(name: str) -> str:
    """Return a field's name with every character that a header cannot have replaced by "?"."""
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "_.-/[]$~") else "?" for char in name[:MAX_NAME_CHARS]
    )
