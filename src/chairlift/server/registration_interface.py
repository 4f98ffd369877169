"""Registration: what a server process needs of a registry that tells routers where replicas are."""

from typing import Protocol

NOTICE_SECONDS = 1.0
"""Seconds between the removal from the registry and the start of a drain, in which routers notice that it is gone."""


class Registration(Protocol):
    """The entry of this replica in a registry."""

    def start(self, listen_url: str) -> None:
        """Begin to register the server that listens at a URL; attempts go on in a task until `stop`."""
        ...

    async def stop(self) -> None:
        """Remove the replica from the registry, within a few seconds; without an entry this does nothing."""
        ...
