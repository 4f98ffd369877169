"""conftest.py: which reports of a test a worker of xdist sends."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    """The module of the hooks that this test runs under."""
    path = str(request.path.with_name("conftest.py"))
    (module,) = (each for each in request.config.pluginmanager.get_plugins() if getattr(each, "__file__", "") == path)
    return module


def sent_reports(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch, reports: list[tuple[str, str, float]], **config: Any
) -> tuple[bool | None, list[str]]:
    """Return what the hook returns, and the steps whose reports it sends, for reports of (step, outcome, seconds)."""
    made = [
        SimpleNamespace(when=when, passed=outcome == "passed", outcome=outcome, duration=seconds)
        for when, outcome, seconds in reports
    ]
    monkeypatch.setattr(conftest, "runtestprotocol", lambda item, nextitem, log: made)
    sent: list[str] = []
    item = SimpleNamespace(
        config=SimpleNamespace(getoption=config.get, **config),
        ihook=SimpleNamespace(pytest_runtest_logreport=lambda report: sent.append(report.when)),
    )
    return conftest.pytest_runtest_protocol(item, None), sent


def test_a_worker_sends_what_is_shown(conftest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(*reports: tuple[str, str, float]) -> list[str]:
        is_done, sent = sent_reports(conftest, monkeypatch, list(reports), workerinput={})
        assert is_done
        return sent

    setup, call, teardown = ("setup", "passed", 0.1), ("call", "passed", 0.1), ("teardown", "passed", 0.1)
    assert sent(setup, call, teardown) == ["call"]
    assert sent(setup, ("call", "failed", 0.1), teardown) == ["call"]
    assert sent(("setup", "failed", 0.1), teardown) == ["setup"]
    assert sent(("setup", "skipped", 0.1), teardown) == ["setup"]
    assert sent(setup, call, ("teardown", "failed", 0.1)) == ["call", "teardown"]
    assert sent(("setup", "passed", 1.5), call, ("teardown", "passed", 2.0)) == ["setup", "call", "teardown"]


def test_without_workers_and_for_a_junit_file_pytest_reports_all(
    conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [("setup", "passed", 0.1)]
    assert sent_reports(conftest, monkeypatch, reports) == (None, [])
    assert sent_reports(conftest, monkeypatch, reports, workerinput={}, xmlpath="report.xml") == (None, [])
