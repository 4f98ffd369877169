"""A tiny model for the tests of cpu_roofline; child processes get no PYTHONPATH."""

from pathlib import Path

import pytest

from support_models import save_tiny
from support_native import need_native


@pytest.fixture(autouse=True)
def no_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `make test`, child processes have no PYTHONPATH with the tools."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_native()
    return save_tiny("qwen3", tmp_path_factory.mktemp("model"), max_position_embeddings=1024)
