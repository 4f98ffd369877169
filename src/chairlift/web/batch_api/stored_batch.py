"""StoredBatch: one batch of requests, its state and its counts.

validating ──> in_progress ──> finalizing ──> completed, or expired at the end of its window
    │ ──> failed      └──> cancelling ──> cancelled
"""

from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

import orjson


class BatchStatus(StrEnum):
    """State of a batch, as OpenAI's API names it."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the batch never changes again."""
        return self in (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.FAILED, BatchStatus.CANCELLED)


MAX_ERROR_CHARS = 300
"""Longest message of an error: a message may have a client's name of a model, and a batch many errors."""

TIMES = (
    "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at"
)  # fmt: skip
"""Names of the times at which a batch has come to a state."""


@dataclass(slots=True, kw_only=True)
class StoredBatch:
    """One batch; all of it but `storage_problem` and `model_problem` is written to its folder.

    Attributes:
        id: its id, `batch_` and hexadecimal digits.
        tenant: who may use it, and as whom its requests are sent.
        endpoint: path of its requests.
        input_file_id: id of the file that it was made of, which may be deleted since.
        completion_window: the window as the client has written it.
        metadata: the client's own values.
        created_at, expires_at: seconds since 1970.
        status: its state.
        ending: the final state that a batch in FINALIZING or CANCELLING comes to.
        times: name of a time of TIMES -> seconds since 1970.
        errors: why the batch has failed: code, message, param and line of each error.
        total, completed, failed: number of its requests, of responses, and of those that are errors.
        output_file_id, error_file_id: ids of its outputs; None for none.
        number: its place in the order of creation.
        models: each model that its requests name, "" for none -> the served model that it meant when the batch began;
            empty once the batch has ended.
        fingerprint: of that model, "" where the service has several.
        storage_problem: why its outputs cannot be written now; "" while they can.
        model_problem: why its requests cannot be sent now; "" while they can.
    """

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str]
    created_at: int
    expires_at: int
    status: BatchStatus = BatchStatus.VALIDATING
    ending: BatchStatus = BatchStatus.COMPLETED
    times: dict[str, int] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    number: int = 0
    models: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    storage_problem: str = ""
    model_problem: str = ""

    def enter(self, status: BatchStatus, now: float) -> None:
        """Come to a state at a time."""
        self.status = status
        self.times[f"{status}_at"] = int(now)
        if status.is_final:
            self.models = {}  # ended batches are kept, and nothing needs them

    def add_error(self, code: str, message: str, line: int | None = None) -> None:
        """Note why the batch fails; a long message is cut."""
        if len(message) > MAX_ERROR_CHARS:
            message = f"{message[: MAX_ERROR_CHARS - 3]}..."
        self.errors.append(_error(code, message, line))

    def to_object(self) -> dict[str, Any]:
        """Return the batch object of OpenAI's API."""
        problems = (("storage_error", self.storage_problem), ("model_not_served", self.model_problem))
        errors = [*self.errors, *(_error(code, message) for code, message in problems if message)]
        return {
            "id": self.id, "object": "batch", "endpoint": self.endpoint,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id, "completion_window": self.completion_window,
            "status": self.status, "output_file_id": self.output_file_id, "error_file_id": self.error_file_id,
            "created_at": self.created_at, "expires_at": self.expires_at,
            **{name: self.times.get(name) for name in TIMES},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata or None,
        }  # fmt: skip

    def to_json(self) -> bytes:
        """Return what is written to the batch's folder."""
        return orjson.dumps({**asdict(self), "storage_problem": "", "model_problem": ""})

    @classmethod
    def from_json(cls, content: bytes) -> "StoredBatch":
        """Return the batch that a folder has; a field of a later version is left out. Raises ValueError."""
        values = orjson.loads(content)
        if not isinstance(values, dict):
            raise ValueError("it is no object")
        kept: dict[str, Any] = {}
        for each in fields(cls):
            if each.name in values:
                kept[each.name] = _checked(each.name, values[each.name])
            elif each.default is MISSING and each.default_factory is MISSING:
                raise ValueError(f"{each.name} is missing")
        batch = cls(**kept)
        if batch.status.is_final:  # an earlier version has kept them
            batch.models = {}
        return batch


def _checked(name: str, value: Any) -> Any:
    """Return the value of a field as its type has it. Raises ValueError."""
    if name in ("status", "ending"):
        return BatchStatus(value)
    if name in ("metadata", "models"):
        is_valid = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    elif name == "times":
        is_valid = isinstance(value, dict) and all(type(each) is int for each in value.values())
    elif name == "errors":
        is_valid = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    elif name in ("created_at", "expires_at", "total", "completed", "failed", "number"):
        is_valid = type(value) is int
    else:
        is_valid = isinstance(value, str) or (value is None and name in ("output_file_id", "error_file_id"))
    if not is_valid:
        raise ValueError(f"{name} has another type")
    return value


def _error(code: str, message: str, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}
