"""ServerSnapshot, Part: what a live server answered on its routes at one moment."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a server answered on one route.

    Attributes:
        path: path of the route.
        status: status of the response; 0 without one.
        body: its body.
        error: why there is no response; "" for none.
        seconds: time that it took.
        had_key: whether the request had a key.
    """

    path: str
    status: int = 0
    body: bytes = b""
    error: str = ""
    seconds: float = 0.0
    had_key: bool = True

    @property
    def is_ok(self) -> bool:
        """Whether the route answered with success."""
        return 200 <= self.status < 300

    @property
    def object(self) -> dict[str, Any]:
        """The JSON object of the body, empty if it is none."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSnapshot:
    """The parts of one server at one moment.

    Attributes:
        url: URL of the server.
        at_seconds: monotonic time after the reading.
        wall_from: seconds since 1970 before it, by the clock of this machine.
        wall_to: the same after it.
        parts: the parts by name.
    """

    url: str
    at_seconds: float
    wall_from: float
    wall_to: float
    parts: Mapping[str, Part]

    def object(self, name: str) -> dict[str, Any]:
        """Return the JSON object of a part that succeeded, else an empty one."""
        part = self.parts.get(name)
        return part.object if part is not None and part.is_ok else {}

    @property
    def is_reachable(self) -> bool:
        """Whether any route answered."""
        return any(part.status for part in self.parts.values())
