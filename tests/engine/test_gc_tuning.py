"""tune_gc: the garbage collector of an engine's own process."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chairlift.engine.gc_tuning import THRESHOLD, tune_gc


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_existing_objects_are_frozen_and_new_cycles_are_still_collected() -> None:
    class Thing:
        pass

    before = gc.get_freeze_count()
    tune_gc()
    assert gc.get_threshold()[0] == THRESHOLD and gc.get_freeze_count() > before
    thing = Thing()
    thing.itself = thing  # type: ignore[attr-defined]
    del thing
    assert gc.collect() >= 1


def test_importing_an_engine_changes_nothing_for_others() -> None:
    code = "import gc; before = gc.get_threshold()\n"
    code += "import chairlift.engine.ipc.engine_main; assert gc.get_threshold() == before"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
