"""FakeAdapters: the LoRA adapters of one fake runner, each with a digest on which every token depends."""

import zlib
from hashlib import sha256
from pathlib import Path

from chairlift.core.errors import ModelError
from chairlift.engine.runner.base import AdapterInfo

RANK = 8
"""Rank that a fake reports of each adapter."""

_KEY_BITS = 32


def cache_key(digest: str) -> int:
    """Return what is added to a token id when it is written to the KV cache with an adapter; 0 without one.

    Keys and values of a real model depend on the adapter, too: a block of another version reads as other tokens.
    """
    return (zlib.crc32(digest.encode()) >> 1) << _KEY_BITS


class FakeAdapters:
    """The loaded versions by number. The files of a folder may have any content."""

    def __init__(self) -> None:
        self._digests: dict[int, str] = {}

    @property
    def numbers(self) -> list[int]:
        """The numbers of the loaded versions, in order."""
        return sorted(self._digests)

    def load(self, number: int, folder: str) -> AdapterInfo:
        """Load a folder under a number. Raises ModelError for a folder without files."""
        files = sorted(path for path in Path(folder).glob("*") if path.is_file())
        if not files:
            raise ModelError(f"{folder} has no files of an adapter")
        contents = [path.read_bytes() for path in files]
        digest = sha256(b"".join(len(content).to_bytes(8, "little") + content for content in contents)).hexdigest()
        self.add(number, digest)
        return AdapterInfo(digest, sum(map(len, contents)), RANK)

    def add(self, number: int, digest: str) -> None:
        """Take a version without files."""
        assert number > 0, "number 0 is the model without an adapter"
        assert number not in self._digests, f"adapter {number} is loaded already"
        self._digests[number] = digest

    def drop(self, number: int) -> None:
        """Forget a version; an unknown number is ignored."""
        self._digests.pop(number, None)

    def digest(self, number: int) -> str:
        """Return the digest of a loaded version, "" for number 0."""
        assert not number or number in self._digests, f"adapter {number} is not loaded"
        return self._digests[number] if number else ""
