"""ReplicaActor, without Ray: its replica's options, its status, its log, and how it stops."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from chairlift.cluster.ray import replica_actor
from chairlift.cluster.ray.replica_actor import ReplicaActor
from support_process import has_ended, wait_until
from support_ray import FAKE_REPLICA

pytestmark = pytest.mark.usefixtures("children_import_tests")


@contextmanager
def actor_of(**options: Any) -> Iterator[ReplicaActor]:
    fields: dict[str, Any] = {"command": FAKE_REPLICA, "model": "", "arguments": (), "environ": {}, "host": "127.0.0.1"}
    actor = ReplicaActor(**{**fields, **options})
    try:
        yield actor
    finally:
        actor._process.kill()
        actor._process.wait()
        actor._reader.join()


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The event that the actor has given its placement group back."""
    event = threading.Event()
    monkeypatch.setattr(replica_actor, "_remove_own_placement_group", event.set)
    return event


def test_a_replica_gets_its_options_and_drains_when_it_is_stopped(removed: threading.Event) -> None:
    options = {"model": "folder", "arguments": ("--dtype", "float32"), "environ": {"FAKE_TAG": "blue"}}
    with actor_of(**options) as actor:
        wait_until(lambda: actor.status()["url"] != "")
        status = actor.status()
        answer = httpx.get(status["url"]).json()
        assert answer["arguments"] == ["serve", "folder", "--dtype", "float32", "--host", "127.0.0.1", "--port", "0"]
        assert answer["tag"] == "blue"
        assert (status["state"], status["exit_code"], status["stopping_seconds"]) == ("running", None, 0.0)
        assert not removed.is_set()
        actor.stop(30.0)
        actor.stop(0.0)  # the second call changes nothing
        assert actor.status()["state"] == "stopping"
        assert removed.wait(30)
        assert actor.status()["exit_code"] == 0
        assert actor.status()["stopping_seconds"] > 0


def test_a_replica_that_does_not_stop_is_killed(removed: threading.Event) -> None:
    with actor_of(environ={"FAKE_DEAF": "1"}) as actor:
        wait_until(lambda: actor.status()["url"] != "")
        actor.stop(0.1)
        assert removed.wait(30)
        assert actor.status()["exit_code"] == -9
        assert has_ended(actor._process.pid)


def test_a_replica_that_ends_by_itself_leaves_its_exit_code_and_log() -> None:
    with actor_of(environ={"FAKE_EXIT": "3"}) as actor:
        wait_until(lambda: actor.status()["state"] == "ended")
        status = actor.status()
    assert (status["exit_code"], status["last_lines"]) == (3, ["model folder not found: /nowhere"])


def test_the_log_is_written_on_and_only_its_end_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    code = "for i in range(100): print(i)\nprint(b'\\xff'.decode('latin1'))"
    with actor_of(command=(sys.executable, "-c", code)) as actor:
        wait_until(lambda: actor.status()["state"] == "ended")
        lines = actor.status()["last_lines"]
    assert len(lines) == replica_actor.NUM_LINES and lines[-2] == "99"
    assert capfd.readouterr().err.startswith("0\n1\n2\n")
