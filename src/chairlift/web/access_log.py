"""AccessRecord and log_access: write one access log line per finished request, with a logger of their own."""

import logging
from dataclasses import dataclass

log = logging.getLogger(__name__)

MAX_PATH_CHARS = 200


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """The fields of a finished request that the access log writes.

    Attributes:
        request_id: the request's id.
        method: the HTTP method.
        route: the route's path pattern, "" for an unknown path.
        status: the HTTP status that was sent, or CLIENT_CLOSED_REQUEST.
        seconds: time from the request's header block to its end.
        code: code of the error that ended the request, "" for none.
        tenant: the client's tenant.
        user: the end user, as the request names it.
        was_submitted: whether the request was submitted to the engine.
    """

    request_id: str
    method: str
    route: str
    status: int
    seconds: float
    code: str
    tenant: str
    user: str = ""
    was_submitted: bool = False


def log_access(record: AccessRecord, path: str) -> None:
    """Log a request, with at most MAX_PATH_CHARS characters of its path."""
    log.info(
        "%s %s %d %.1f ms", record.method, path[:MAX_PATH_CHARS], record.status, record.seconds * 1000,
        extra={"request_id": record.request_id, "status": record.status, "code": record.code, "tenant": record.tenant,
               "user": record.user},
    )  # fmt: skip
