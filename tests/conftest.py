"""What every test runs under: one thread, no network, reproducible Hypothesis; the markers.

`make test` runs a share of the seeds, steps and cases; `make test-all` sets CHAIRLIFT_FULL=1 and runs all of them.
"""

import atexit
import gc
import logging
import math
import os
import shutil
import signal
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch or huggingface_hub; children of the tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Several workers share few processors, where threads that spin while they wait take a processor from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["TRITON_INTERPRET"] = "1"  # kernels for GPUs run on the CPU
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
if "CHAIRLIFT_CACHE" not in os.environ:  # those of the workers are their parent's
    os.environ["CHAIRLIFT_CACHE"] = cache = tempfile.mkdtemp(prefix="chairlift-test-cache-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
# Each client reads all authorities that the system trusts, for 50 ms, also for a connection without TLS. One is enough.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("support_authority.pem"))
# A job in the background of a shell ignores Ctrl-C, and so would everything that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import HealthCheck, settings

from chairlift.engine.scheduler.draft_planner import DraftPlanner
from chairlift.model.kernels.cpu import threads
from chairlift.observability.logging import current_id, current_trace_id
from support_shares import FULL, choose_share
from support_triton_products import fix_products_at_import

fix_products_at_import()
if not FULL:
    # Threads of the native kernels wait for each other at each barrier, for long where other tests use the processors.
    # One thread where a test asks for no number; nothing has imported the function yet.
    os.environ.setdefault("CHAIRLIFT_CPU_THREADS", "1")
    get_thread_pool = threads.get_thread_pool
    threads.get_thread_pool = lambda number: get_thread_pool(1 if number is None else number)

LOG = logging.getLogger("chairlift")
BROWSER = FULL or os.environ.get("CHAIRLIFT_BROWSER", "") not in ("", "0")

# A share is the same share every time; the whole looks for new examples.
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("share", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("full", deadline=None, print_blob=True, suppress_health_check=SLOW)
settings.load_profile("full" if FULL else "share")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the chosen part of the tests does not have; pytest counts it as deselected.

    A test that the command line names, as file::test, runs all its cases.
    """
    left_out = set()
    if not FULL:
        left_out = {item for item in items if item.get_closest_marker("full")}
        left_out |= set(outside_of_shares([item for item in items if item not in left_out]))
        named = tuple(name for name in map(Path, config.args) if "::" in name.name)
        left_out = {item for item in left_out if not any(is_named(item, config, name) for name in named)}
    if not BROWSER:
        left_out |= {item for item in items if item.get_closest_marker("browser")}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def is_named(item: pytest.Item, config: pytest.Config, name: Path) -> bool:
    """Whether the command line names a test, or the class that it is in, as file::test."""
    file, _, inside = str(config.invocation_params.dir / name).partition("::")
    begin = f"{file}::{inside}"
    full_name = f"{item.path}::{item.nodeid.partition('::')[2]}"
    return full_name == begin or full_name.startswith((begin + "[", begin + "::"))


def outside_of_shares(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of tests with the marker `share` that `make test` leaves to `make test-all`."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("share"):
            if not hasattr(item, "callspec"):
                raise pytest.UsageError(f"{item.nodeid} has no parameters: a share needs cases")
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = []
    for name, each in cases.items():
        (count,) = each[0].get_closest_marker("share").args
        values = [tuple(map(repr, item.callspec.params.values())) for item in each]
        chosen = choose_share(values, count, zlib.crc32(name.encode()) % len(each))
        left_out += [item for at, item in enumerate(each) if at not in chosen]
    return left_out


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keep the tests and modules, a million objects, out of every collection of garbage; collect less often later.

    What is garbage already is kept, too: to find it takes seconds.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Do not search all objects of the tests for garbage once more; `make test-all` does, and warns."""
    if not FULL:
        gc.freeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """A worker of xdist sends only messages that change what is shown: each costs the processors a millisecond."""
    config = session.config
    if hasattr(config, "workerinput") and not config.getoption("xmlpath", None):
        for plugin in config.pluginmanager.get_plugins():
            if hasattr(plugin, "sendevent"):
                plugin.sendevent = ShownMessages(plugin.sendevent, config)


class ShownMessages:
    """Sends the messages of a worker, without those of which the controller shows nothing.

    These are that a test begins or has ended, unless pytest is verbose, and the reports of a setup or teardown that
    passed and is not listed among the durations. The teardown of a test that failed is sent: it may have output.
    """

    def __init__(self, send: Callable[..., None], config: pytest.Config) -> None:
        self._send, self._is_verbose = send, config.getoption("verbose", 0) > 0
        shown = config.getoption("durations_min", None)
        has_durations = config.getoption("durations", None) is not None
        self._seconds_shown = (0.0 if shown is None else shown) if has_durations else math.inf
        self._failed = ""

    def __call__(self, name: str, **kwargs: Any) -> None:
        if name in ("logstart", "logfinish") and not self._is_verbose:
            return
        if name == "testreport":
            report = kwargs["data"]
            if report["outcome"] != "passed":
                self._failed = report["nodeid"]
            elif (
                report["when"] != "call"
                and report["duration"] < self._seconds_shown
                and report["nodeid"] != self._failed
            ):
                return
        self._send(name, **kwargs)


BEFORE = pytest.StashKey[tuple[Any, ...]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Chairlift's log begins without ids. A fixture for this would take most of the time of a short test."""
    current_id.set("")
    current_trace_id.set("")
    item.stash[BEFORE] = (*where_it_runs(), LOG.handlers[:], LOG.level, LOG.propagate)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The log is set up as before the test, whose thread has the processors and the priority that it had."""
    processors, priority, handlers, level, propagate = item.stash[BEFORE]
    try:
        yield
    finally:
        for mine in LOG.handlers:
            if mine not in handlers:
                mine.close()
        LOG.handlers[:], LOG.propagate = handlers, propagate
        LOG.setLevel(level)
        now = where_it_runs()
        os.sched_setaffinity(0, processors)
    assert now == [processors, priority], "later tests would run on fewer processors, or less often"


def where_it_runs() -> list[Any]:
    """Return the processors and the priority of this thread."""
    return [os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)]


@pytest.fixture
def children_import_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes of the test import the support modules, too."""
    from support_process import child_environment  # imports the engine, which most tests do not need

    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])


@pytest.fixture(autouse=True)
def _all_drafts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every proposed draft is tried, whatever the steps of this machine take, unless a test has `measured_drafts`."""
    if request.node.get_closest_marker("measured_drafts") is None:
        monkeypatch.setattr(DraftPlanner, "_costs", lambda planner, decodes: (1.0, 0.0))
