"""launch_engine: a process that imports the runner, and none where the system has no more processes."""

import pytest

from chairlift.llm import launch_engine as module
from chairlift.llm.launch_engine import launch_engine


def test_the_process_imports_the_runner_until_it_is_closed() -> None:
    launched = launch_engine()
    assert launched is not None
    process = launched._process
    assert process is not None and process.poll() is None
    assert process.args[-1] == "chairlift.model.runner.torch_runner"  # type: ignore[index]
    launched.close()
    assert process.returncode is not None


def test_without_more_processes_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(modules: list[str]) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module, "PrespawnedProcess", refuses)
    assert launch_engine() is None
