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
      that was open when the engine failed may be the reason, so it is none of these; errors of Anthropic's API do not
      say whether it was.
    * 502: a replica was lost, and the router has not noticed it yet or has no other one.
    * 401 and 403: a replica refuses the key of its router.
    * 404 for the model: the batch was accepted when it was served, so its replica is lost.
    """
    code, kind = _error_names(response.body)
    match response.status:
        case 429:
            return BusyKind.TENANT
        case 0 | 401 | 403:
            return BusyKind.BATCH
        case 502:
            return BusyKind.BATCH_FOR_A_WHILE
        case 503 if code is None:
            return BusyKind.BATCH_FOR_A_WHILE
        case 503 if code != EngineDead.code:
            return BusyKind.BATCH
        case 404 if code == ModelNotFound.code or (code is None and kind == ANTHROPIC_NOT_FOUND):
            return BusyKind.BATCH
    return None


def _error_names(body: object) -> tuple[object, object]:
    """Return code and type of the error in a body; Anthropic's API has no codes."""
    error = body.get("error") if isinstance(body, Mapping) else None
    return (error.get("code"), error.get("type")) if isinstance(error, Mapping) else (None, None)
