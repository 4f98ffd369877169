"""RequestResult: how a generation request ended."""

from enum import StrEnum


class RequestResult(StrEnum):
    """How a generation request ended. Only SUCCESS and SERVER_ERROR say anything about the availability."""

    SUCCESS = "success"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    REJECTED = "rejected"  # 429: limits of the tenant or of the queue
    ABORTED = "aborted"  # the client left, its own timeout has passed, or a router goes on elsewhere

    @classmethod
    def of_status(cls, status: int) -> "RequestResult":
        """Return the result of a response; a status of 0 or 499 is that of a client that left."""
        if status in (0, 499):
            return cls.ABORTED
        if status == 429:
            return cls.REJECTED
        return cls.SERVER_ERROR if status >= 500 else cls.CLIENT_ERROR if status >= 400 else cls.SUCCESS
