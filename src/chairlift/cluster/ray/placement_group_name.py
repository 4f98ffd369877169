"""GroupName: what the name of a placement group says, so that a new controller knows the replicas of the last one.

    chairlift:<fleet>:<number>:<token>:<version>:<replica type>:<seconds since 1970>

Ray gives an actor's name to one actor only. The actor's name has the number without the token, so of two controllers
that start the same missing replica at once one fails. The replica's id has the token, and is unique for ever.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote

_PREFIX = "chairlift"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupName:
    """The name of a placement group, in parts.

    Attributes:
        fleet: name of the fleet.
        number: above that of every replica that the fleet has at the start of this one.
        token: random characters.
        version: version of the replica's ReplicaSpec.
        replica_type: type of its machine.
        started_seconds: when its start was asked for, in seconds since 1970 UTC.
    """

    fleet: str
    number: int
    token: str
    version: str
    replica_type: str
    started_seconds: float

    @classmethod
    def new(cls, fleet: str, number: int, *, version: str, replica_type: str, now: float) -> Self:
        """Return the name of a new replica, with a new token."""
        return cls(
            fleet=fleet, number=number, token=secrets.token_hex(4), version=version, replica_type=replica_type,
            started_seconds=round(now, 3),
        )  # fmt: skip

    @classmethod
    def parse(cls, text: str, fleet: str) -> Self | None:
        """Return the parts of a name; None if it is not a replica of this fleet."""
        match text.split(":"):
            case [prefix, name, number, token, version, replica_type, started] if (prefix, name) == (_PREFIX, fleet):
                try:
                    return cls(
                        fleet=fleet, number=int(number), token=token, version=version,
                        replica_type=unquote(replica_type), started_seconds=float(started),
                    )  # fmt: skip
                except ValueError:
                    return None
        return None

    @property
    def text(self) -> str:
        """The name of the placement group."""
        parts = (
            _PREFIX, self.fleet, self.number, self.token, self.version, quote(self.replica_type, safe=""),
            f"{self.started_seconds:.3f}",
        )  # fmt: skip
        return ":".join(map(str, parts))

    @property
    def actor_name(self) -> str:
        """The name of the actor."""
        return f"{_PREFIX}:{self.fleet}:{self.number}"

    @property
    def replica_id(self) -> str:
        """The id of the replica."""
        return f"{self.fleet}-{self.number}-{self.token}"


def next_number(names: Iterable[GroupName]) -> int:
    """Return the number of the next replica."""
    return max((each.number for each in names), default=0) + 1
