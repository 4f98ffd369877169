"""Access: a line of log for each request that is over, by a logger of its own, which can be turned on and off alone."""

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)

MAX_PATH_CHARS = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that is over.

    Attributes:
        request_id: its id.
        method: of HTTP.
        route: the route's own path, "" where there is none such.
        status: that was sent, or GONE.
        seconds: from its head to its end.
        code: of the error that it ended with, "" for none.
        tenant: who asked.
        user: for whom, as the tenant says.
        begun: whether the engine was asked to work for it.
    """

    request_id: str
    method: str
    route: str
    status: int
    seconds: float
    code: str
    tenant: str
    user: str = ""
    begun: bool = False


def tell(seen: Seen, path: str) -> None:
    """Log a request; of its path no more than the beginning."""
    log.info(
        "%s %s %d %.1f ms", seen.method, path[:MAX_PATH_CHARS], seen.status, seen.seconds * 1000,
        extra={"request_id": seen.request_id, "status": seen.status, "code": seen.code, "tenant": seen.tenant,
               "user": seen.user},
    )  # fmt: skip
