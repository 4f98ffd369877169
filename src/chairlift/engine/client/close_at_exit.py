"""close_at_exit: closes clients of engine threads when the interpreter ends."""

import atexit
import weakref
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


_open_clients: "weakref.WeakSet[_Closable]" = weakref.WeakSet()


def close_at_exit(client: _Closable) -> None:
    """Close a client when the interpreter ends: an engine thread inside a native kernel would abort it."""
    _open_clients.add(client)


@atexit.register
def _close_all() -> None:
    for client in list(_open_clients):
        client.close()
