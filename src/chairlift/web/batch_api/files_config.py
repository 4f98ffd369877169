"""FilesConfig: where uploaded files and batches are kept, and how much of them."""

from dataclasses import dataclass
from pathlib import Path

from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    """Settings of /v1/files and /v1/batches.

    Attributes:
        files_folder: folder of the files and batches; None for one that is deleted at the end of the process.
        files_bytes: size of all files and of what running batches need, together; half of it for each tenant with a
            key; 0 stores none. Responses and outputs of batches count, but are always written.
        max_file_bytes: largest uploaded file.
        max_batch_requests: requests of all batches that run at the same time, at most.
    """

    files_folder: Path | None = None
    files_bytes: int = 4_000_000_000
    max_file_bytes: int = 200_000_000
    max_batch_requests: int = 32

    def __post_init__(self) -> None:
        for name, least in (("files_bytes", 0), ("max_file_bytes", 1), ("max_batch_requests", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}", option=name)
