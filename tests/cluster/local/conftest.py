"""A folder for a fleet whose processes are killed after the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support_local_cluster import kill_fleet


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "fleet"
    kill_fleet(tmp_path / "fleet")
