"""launch_engine: a process that imports the runner, and none where the system has no more processes."""

import pytest

from chairlift.llm import launch_engine as module
from chairlift.llm.launch_engine import launch_engine


def test_the_process_imports_the_runner_until_it_is_closed() -> None:
    launched = launch_engine()
    assert launched is not None
    process = launched.take()
    assert process is not None and process.args[-1] == "chairlift.model.runner.torch_runner"  # type: ignore[index]
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)  # it ends with the pipe


def test_without_more_processes_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(modules: list[str]) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(module, "PrespawnedProcess", refuses)
    assert launch_engine() is None
