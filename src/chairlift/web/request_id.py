"""request_id: accepts the client's request id if it is short and plain, otherwise generates one."""

import re
from random import Random

MAX_ID_CHARS = 64
_random = Random()
"""Seeded by the system once: a system call for each id would release the GIL to another thread. Ids are not secret."""

_HARMLESS = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_ID_CHARS}}}\Z")


def request_id(client_id: bytes | None) -> str:
    """Return the client's id if it is at most MAX_ID_CHARS of A-Z, a-z, 0-9 and ._:-, else a new one."""
    text = (client_id or b"").decode("latin-1")
    return text if _HARMLESS.match(text) else f"req-{_random.getrandbits(96):024x}"
