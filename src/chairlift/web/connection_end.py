"""abort_connection, ends_connection: how and when the connection of a request ends."""

from collections.abc import Callable

from chairlift.core.errors import BodyTimeout, BodyTooLarge, Unavailable, UnsupportedMediaType
from chairlift.web.body import Scope


def abort_connection(scope: Scope) -> None:
    """Abort the connection of a request, with all data that its client has not read yet."""
    abort: Callable[[], None] | None = scope.get("state", {}).get("abort")
    if abort is not None:
        abort()


def ends_connection(error: BaseException) -> bool:
    """Return whether the connection must close: the body is unread, or the server is draining."""
    if isinstance(error, Unavailable):
        return error.details.get("state") == "draining"
    return isinstance(error, BodyTooLarge | BodyTimeout | UnsupportedMediaType)
