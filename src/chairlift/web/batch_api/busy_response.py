"""busy_kind: whether a response says that the server could not take a request of a batch now, and for whom."""

from collections.abc import Mapping
from enum import Enum, auto

from chairlift.core.errors import EngineDead, ModelNotFound
from chairlift.web.batch_files.batch_run import BatchResponse

ANTHROPIC_NOT_FOUND = "not_found_error"


class BusyKind(Enum):
    """Whose requests wait."""

    TENANT = auto()
    BATCH = auto()
    BATCH_FOR_A_WHILE = auto()
    """As BATCH, but the request may be the reason, so it is not sent for ever."""


def busy_kind(response: BatchResponse) -> BusyKind | None:
    """Return whose requests wait after a response; None for one that is about the request itself.

    * 429 is a limit of the tenant, or a full queue.
    * Without a response, and with 503, the engine starts again, a replica is lost, or the server leaves. A request
      that was open when the engine failed may be the reason, so it is none of these.
    * 502: a replica was lost, and the router has not noticed it yet or has no other one.
    * 401 and 403: a replica refuses the key of its router.
    * 404 for the model: the batch was accepted when it was served, so its replica is lost.
    """
    if response.status == 429:
        return BusyKind.TENANT
    code, kind = _error_names(response.body)
    if response.status == 503:
        return None if code == EngineDead.code else BusyKind.BATCH
    if response.status == 502:
        return BusyKind.BATCH_FOR_A_WHILE
    if response.status == 404:
        return BusyKind.BATCH if ModelNotFound.code == code or kind == ANTHROPIC_NOT_FOUND else None
    return BusyKind.BATCH if response.status in (0, 401, 403) else None


def _error_names(body: object) -> tuple[object, object]:
    """Return code and type of the error in a body."""
    error = body.get("error") if isinstance(body, Mapping) else None
    return (error.get("code"), error.get("type")) if isinstance(error, Mapping) else (None, None)
