"""Request ids: taken over from the client where they are harmless, else drawn."""

import re
from random import Random

MAX_ID_CHARS = 64
_drawn = Random()
"""Seeded by the system once: asking it every time lets go of Python's lock, and another thread takes it. No secret."""

_HARMLESS = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_ID_CHARS}}}\Z")


def request_id(given: bytes | None) -> str:
    """Return the client's own id if it is one word of letters, digits and ._:- that is not too long, else a new one."""
    text = (given or b"").decode("latin-1")
    return text if _HARMLESS.match(text) else f"req-{_drawn.getrandbits(96):024x}"
