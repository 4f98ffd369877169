"""FilesConfig: limits that make no sense are rejected."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.batch_api.files_config import FilesConfig


@pytest.mark.parametrize(("name", "value"), [("files_bytes", -1), ("max_file_bytes", 0), ("max_batch_requests", 0)])
def test_a_value_below_the_least_is_rejected(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least {value + 1}, got {value}") as error:
        FilesConfig(**{name: value})  # type: ignore[arg-type]
    assert error.value.details["option"] == name
    assert getattr(FilesConfig(**{name: value + 1}), name) == value + 1  # type: ignore[arg-type]
