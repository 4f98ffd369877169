"""LocalConfig rejects values that make no sense, and names them."""

from pathlib import Path
from typing import Any

import pytest

from chairlift.cluster.local.local_config import LocalConfig
from chairlift.core.errors import ConfigError
from support_shares import for_each


@for_each(
    ("fields", "message"),
    [
        ({"command": ()}, "command"), ({"ports": (0, 5)}, "0 to 5"), ({"ports": (9, 8)}, "9 to 8"),
        ({"ports": (1, 65_536)}, "65536"), ({"cpus": frozenset()}, "CPUs"), ({"gpus": ("0", "0")}, "twice"),
        ({"stop_timeout": -1.0}, "stop_timeout"), ({"first_restart": float("nan")}, "first_restart"),
        ({"max_restart": float("inf")}, "max_restart"), ({"max_failures": 0}, "max_failures"),
        ({"max_log_bytes": 0}, "max_log_bytes"), ({"num_failed_kept": -1}, "num_failed_kept"),
        ({"ready_path": "readyz"}, "ready_path"),
    ],
)  # fmt: skip
def test_values_without_sense_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalConfig(folder=Path("f"), **fields)


def test_the_defaults_are_valid() -> None:
    assert LocalConfig(folder=Path("f"), ports=(1, 1)).command[1:] == ("-m", "chairlift", "serve")
