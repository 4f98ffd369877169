"""conftest.py: a worker of xdist sends the reports that the controller shows, and no others."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    """The module of the hooks that this test runs under."""
    path = str(request.path.with_name("conftest.py"))
    (module,) = (each for each in request.config.pluginmanager.get_plugins() if getattr(each, "__file__", "") == path)
    return module


def sent(conftest: ModuleType, *messages: tuple[str, str, float] | str, **options: Any) -> list[str]:
    """Return what a worker sends of these messages: names, or reports as (step, outcome, seconds)."""
    names: list[str] = []

    class Worker:
        def sendevent(self, name: str, **kwargs: Any) -> None:
            names.append(kwargs["data"]["when"] if name == "testreport" else name)

    worker, options = Worker(), {"durations": 60, "durations_min": 1.0, **options}
    config = SimpleNamespace(
        workerinput={}, getoption=options.get, pluginmanager=SimpleNamespace(get_plugins=lambda: [object(), worker])
    )
    conftest.pytest_sessionstart(SimpleNamespace(config=config))
    for message in messages:
        if isinstance(message, str):
            worker.sendevent(message, nodeid="t")
        else:
            report = dict(zip(("when", "outcome", "duration"), message, strict=True), nodeid="t")
            worker.sendevent("testreport", data=report)
    return names


SETUP, CALL, TEARDOWN = ("setup", "passed", 0.1), ("call", "passed", 0.1), ("teardown", "passed", 0.1)
FAILED_CALL = ("call", "failed", 0.1)


def test_of_a_test_that_passes_one_report_is_sent(conftest: ModuleType) -> None:
    assert sent(conftest, "logstart", SETUP, CALL, TEARDOWN, "logfinish", "runtest_protocol_complete") == [
        "call", "runtest_protocol_complete",
    ]  # fmt: skip


def test_what_fails_or_is_skipped_is_sent_with_its_teardown(conftest: ModuleType) -> None:
    assert sent(conftest, SETUP, FAILED_CALL, TEARDOWN) == ["call", "teardown"]
    for outcome in ("failed", "skipped"):
        assert sent(conftest, ("setup", outcome, 0.1), TEARDOWN) == ["setup", "teardown"]
    assert sent(conftest, SETUP, CALL, ("teardown", "failed", 0.1)) == ["call", "teardown"]


def test_durations_are_sent_if_they_are_listed(conftest: ModuleType) -> None:
    long = (("setup", "passed", 1.5), CALL, ("teardown", "passed", 2.0))
    assert sent(conftest, *long) == ["setup", "call", "teardown"]
    assert sent(conftest, *long, durations=None, durations_min=None) == ["call"]
    assert sent(conftest, SETUP, CALL, TEARDOWN, durations=0, durations_min=None) == ["setup", "call", "teardown"]


def test_all_is_sent_to_who_wants_details_or_writes_a_file(conftest: ModuleType) -> None:
    assert sent(conftest, "logstart", CALL, "logfinish", verbose=1) == ["logstart", "call", "logfinish"]
    whole = ("logstart", SETUP, CALL, TEARDOWN, "logfinish")
    assert sent(conftest, *whole, xmlpath="report.xml") == ["logstart", "setup", "call", "teardown", "logfinish"]
