"""cpu_affinity_and_priority: pinning and priorities of processes and threads; each script runs in its own process."""

import os
import subprocess
import sys
import threading

import pytest

from chairlift.core import cpu_affinity_and_priority
from chairlift.core.cpu_affinity_and_priority import pin_thread, thread_ids, usable_cpus

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads have no processors and no niceness of their own")
two_cpus = pytest.mark.skipif(len(usable_cpus()) < 2, reason="there is one processor")

BEGIN = """
import os, threading
from chairlift.core.cpu_affinity_and_priority import lower_priority, thread_ids, usable_cpus, pin_process
ended = threading.Event()
def made():
    began, found = threading.Event(), []
    def work():
        found.append(threading.get_native_id())
        began.set()
        ended.wait()
    threading.Thread(target=work, daemon=True).start()
    began.wait()
    return found[0]
"""


def output_of(script: str) -> str:
    """Run a script and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@linux
def test_usable_are_those_of_the_affinity() -> None:
    assert usable_cpus() == frozenset(os.sched_getaffinity(0))


@linux
def test_threads_are_all_that_live() -> None:
    began, ended, found = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        found.append(threading.get_native_id())
        began.set()
        ended.wait()

    worker = threading.Thread(target=work)
    worker.start()
    began.wait()
    try:
        assert {os.getpid(), *found} <= thread_ids()
    finally:
        ended.set()
        worker.join()


def test_without_a_task_folder_no_threads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_affinity_and_priority, "TASKS", cpu_affinity_and_priority.Path("/nowhere"))
    assert thread_ids() == frozenset()
    cpu_affinity_and_priority.lower_priority(19)
    assert not hasattr(os, "getpriority") or os.getpriority(os.PRIO_PROCESS, 0) < 19


@linux
@two_cpus
def test_every_thread_keeps_to_some_processors_those_that_come_later_too() -> None:
    printed = output_of("""
before, (first, *_) = made(), sorted(usable_cpus())
assert pin_process([first])
print([os.sched_getaffinity(each) == {first} for each in (before, 0, made())])
""")
    assert printed == "[True, True, True]"


@linux
def test_processors_that_are_not_there_change_nothing() -> None:
    assert output_of("""
before = usable_cpus()
print(pin_process([100_000]), pin_process([]), usable_cpus() == before)
""") == "False False True"  # fmt: skip


@linux
def test_the_calling_thread_and_those_it_starts_later_give_way() -> None:
    printed = output_of("""
started = os.getpriority(os.PRIO_PROCESS, 0)
other = made()
lower_priority(5)
nice = [os.getpriority(os.PRIO_PROCESS, each) for each in (0, made(), other)]
print(nice == [min(19, started + 5), min(19, started + 5), started])
""")
    assert printed == "True"


def test_who_works_beside_others_keeps_off_their_processors_or_off_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_affinity_and_priority, "usable_cpus", lambda: frozenset({2, 3, 5}))
    assert cpu_affinity_and_priority.cpus_apart_from(()) == {2, 3, 5}
    assert cpu_affinity_and_priority.cpus_apart_from((3, 5)) == {2}
    assert cpu_affinity_and_priority.cpus_apart_from((3, 2, 5)) == {2, 5}
    monkeypatch.setattr(cpu_affinity_and_priority, "usable_cpus", lambda: frozenset({4}))
    assert cpu_affinity_and_priority.cpus_apart_from((4,)) == {4}


@linux
def test_a_pinned_thread_and_its_child_threads_stay_pinned() -> None:
    every = usable_cpus()
    one = frozenset(sorted(every)[:1])
    affinities: list[frozenset[int]] = []

    def work() -> None:
        pin_thread(one)
        inner = threading.Thread(target=lambda: affinities.append(usable_cpus()))
        inner.start()
        inner.join()
        pin_thread({1 << 9})  # this processor does not exist, so nothing changes
        affinities.append(usable_cpus())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert affinities == [one, one] and usable_cpus() == every
