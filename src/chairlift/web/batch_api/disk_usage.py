"""DiskUsage: counts the bytes of files and batches on the disk, for each tenant and together."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

Inode = tuple[int, int]
"""Device and number of an inode: folders of files and of batches may be on several file systems."""


@dataclass(slots=True)
class _Content:
    """Bytes on the disk, once however many names they have."""

    tenant: str
    num_bytes: int
    names: set[str] = field(default_factory=set)


class DiskUsage:
    """Bytes of everything in a folder, of at most `limit` ones. Any thread may use it.

    Names of one inode are counted once: the requests of a batch are the file that it was made of, until that file is
    deleted.

    Attributes:
        limit: bytes that all tenants may use together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.RLock()
        self._contents: dict[Inode | str, _Content] = {}
        self._keys: dict[str, Inode | str] = {}
        self._bytes: Counter[str] = Counter()

    def set(self, name: str, tenant: str, num_bytes: int, inode: Inode | None = None) -> None:
        """Count what has this name; `inode` is that of its content, None where no other name has the same content."""
        with self._lock:
            self._remove(name)
            key = inode or name
            content = self._contents.setdefault(key, _Content(tenant, 0))
            content.names.add(name)
            self._keys[name] = key
            self._resize(content, num_bytes)

    def remove(self, name: str) -> None:
        """Count what has this name no more."""
        with self._lock:
            self._remove(name)

    def num_bytes(self, tenant: str | None = None) -> int:
        """Return the bytes of a tenant, by default of all."""
        with self._lock:
            return sum(self._bytes.values()) if tenant is None else self._bytes[tenant]

    def reserve(self, name: str, tenant: str, num_bytes: int) -> str:
        """Count `num_bytes` for what has this name, unless that is too much; returns why it is, or ""."""
        with self._lock:
            problem = self.problem(tenant, num_bytes, except_name=name)
            if not problem:
                self.set(name, tenant, num_bytes)
            return problem

    def problem(self, tenant: str, num_bytes: int = 0, *, except_name: str = "") -> str:
        """Return why a tenant may not use `num_bytes` besides what it has, "" where it may."""
        with self._lock:
            key = self._keys.get(except_name)
            counted = 0 if key is None else self._contents[key].num_bytes
            own = self.num_bytes(tenant) - counted
            used = num_counted({**self._bytes, tenant: own}, tenant, self.limit)
        this = f" and this one {num_bytes} or more" if num_bytes else ""
        if used + num_bytes > self.limit:
            return (
                f"the stored files and batches have {used} bytes{this}, the limit of their sum is {self.limit}; "
                "delete files that are not needed any more"
            )
        if own + num_bytes > (share := tenant_share(tenant, self.limit)):
            return (
                f"your files and batches have {own} bytes{this}, the limit of their sum is {share}; delete files that "
                "are not needed any more"
            )
        return ""

    def _remove(self, name: str) -> None:
        if (key := self._keys.pop(name, None)) is None:
            return
        content = self._contents[key]
        content.names.discard(name)
        if not content.names:
            self._resize(content, 0)
            del self._contents[key]

    def _resize(self, content: _Content, num_bytes: int) -> None:
        self._bytes[content.tenant] += num_bytes - content.num_bytes
        content.num_bytes = num_bytes


def num_counted(amounts: Mapping[str, int], tenant: str, limit: int) -> int:
    """Return what counts of the amounts of all tenants when one of them asks for room.

    Each other tenant counts at most with half of the limit: what it has beyond that, since outputs are always written
    or since it had no key before, is not taken from the others.
    """
    return sum(amount if each == tenant else min(amount, limit // 2) for each, amount in amounts.items())


def tenant_share(tenant: str, limit: int) -> int:
    """Return how much of a limit one tenant may use: half, so that others have room, and all without keys."""
    return limit // 2 if tenant else limit
