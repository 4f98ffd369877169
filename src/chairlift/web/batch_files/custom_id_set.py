"""CustomIdSet: the names of requests, of which only short digests are kept."""

from hashlib import blake2b

DIGEST_BYTES = 16
"""Two of a batch's 50,000 names have one digest with a probability of about 4e-30."""


class CustomIdSet:
    """Names of requests of one batch. A name may have 2 KB, its digest has 16 bytes."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def add(self, custom_id: str) -> None:
        """Add a name."""
        self._digests.add(custom_id_digest(custom_id))

    def __contains__(self, custom_id: object) -> bool:
        """Return whether a name was added."""
        return isinstance(custom_id, str) and custom_id_digest(custom_id) in self._digests

    def __len__(self) -> int:
        """Return the number of different names."""
        return len(self._digests)


def custom_id_digest(custom_id: str) -> bytes:
    """Return what stands for a name."""
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()
