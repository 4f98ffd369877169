"""AdapterStore: names to versions, leases, replacements, memory and 1,000 loads, on a fake engine."""

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import ConfigError, InvalidRequest, ModelNotFound, Overloaded
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.base import AdapterInfo
from chairlift.engine.runner.fake import FakeRunner
from chairlift.llm.adapter_store import AdapterStore
from support_adapter_versions import write_adapter
from support_inline import FAKE, WAIT_SECONDS
from support_process import wait_until


class Engine:
    """A fake engine with stores, and a gate for its loads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.may_load = threading.Event()
        self.may_load.set()
        test = self

        class Gated(FakeRunner):
            def load_adapter(self, number: int, folder: str) -> AdapterInfo:
                assert test.may_load.wait(WAIT_SECONDS), "the load was never released"
                return super().load_adapter(number, folder)

        self.runner = Gated(FAKE)
        self.client = InlineClient(EngineLoop(self.runner, SchedulerConfig()))

    def store(self, **options: Any) -> AdapterStore:
        return AdapterStore(self.client, "base", **options)

    def write(self, name: str, size: int = 10) -> str:
        return str(write_adapter(self.folder / name, [name.encode().ljust(size)]))

    def wait_for(self, *numbers: int) -> None:
        wait_until(lambda: self.runner.adapters.numbers == list(numbers), WAIT_SECONDS)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Engine]:
    fake = Engine(tmp_path)
    yield fake
    fake.may_load.set()
    fake.client.close()


def done(future: "Future[Any]") -> Any:
    return future.result(WAIT_SECONDS)


def test_a_replaced_version_is_dropped_after_its_last_request(fake: Engine) -> None:
    store = fake.store()
    state = done(store.load("a", fake.write("one")))
    assert (state.name, state.parent, state.rank, state.num_bytes, state.is_loaded) == ("a", "base", 8, 10, True)
    old = [done(store.lease("a")) for _ in range(2)]
    assert store.states()[0].running == 2
    done(store.load("a", fake.write("two"), in_place=True))
    new = done(store.lease("a"))
    assert new.version.number == 2 and new.version.digest != old[0].version.digest == old[1].version.digest
    old[0].release()
    old[0].release()
    done(store.load("other", fake.write("other")))  # loads and drops run in order
    assert fake.runner.adapters.numbers == [1, 2, 3]
    old[1].release()
    fake.wait_for(2, 3)
    store.unload("a")
    with pytest.raises(ModelNotFound):
        store.lease("a")
    assert 2 in fake.runner.adapters.numbers
    new.release()
    fake.wait_for(3)


def test_requests_wait_only_for_the_name_that_loads(fake: Engine) -> None:
    store = fake.store()
    done(store.load("a", fake.write("a")))
    fake.may_load.clear()
    loading = store.load("b", fake.write("b"))
    waiting, cancelled = store.lease("b"), store.lease("b")
    assert store.states()[1].waiting == 2 and cancelled.cancel()
    done(store.lease("a")).release()
    assert not waiting.done()
    fake.may_load.set()
    done(loading)
    assert done(waiting).version.number == 2
    assert store.states()[1].running == 1


def test_an_unloaded_name_ends_the_requests_that_wait(fake: Engine) -> None:
    store = fake.store()
    fake.may_load.clear()
    loading = store.load("a", fake.write("a"))
    waiting = store.lease("a")
    store.unload("a")
    with pytest.raises(ModelNotFound):
        done(waiting)
    fake.may_load.set()
    with pytest.raises(ModelNotFound):
        done(loading)
    fake.wait_for()
    assert store.states() == [] and store.num_bytes == 0


def test_errors_are_typed(fake: Engine) -> None:
    store = fake.store()
    done(store.load("a", fake.write("a")))
    with pytest.raises(InvalidRequest, match="already loaded"):
        store.load("a", fake.write("a"))
    with pytest.raises(InvalidRequest, match="name of the model"):
        store.load("base", fake.write("a"))
    with pytest.raises(ModelNotFound):
        store.unload("b")
    with pytest.raises(InvalidRequest, match="has no files"):
        done(store.load("b", "/missing"))
    assert [state.name for state in store.states()] == ["a"]
    with pytest.raises(InvalidRequest, match="has no files"):
        done(store.load("a", "/missing", in_place=True))
    assert done(store.lease("a")).version.number == 1


def test_a_runner_without_adapters_names_the_option(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.client.loop, "_runner", object())
    with pytest.raises(ConfigError, match="enable_lora"):
        done(fake.store().load("a", fake.write("a")))


def test_the_unused_adapter_that_was_used_longest_ago_makes_room(fake: Engine) -> None:
    store = fake.store(max_bytes=30)
    done(store.load("pinned", fake.write("pinned"), pinned=True))
    for name in ("a", "b"):
        done(store.load(name, fake.write(name)))
    done(store.lease("a")).release()
    done(store.load("c", fake.write("c")))
    fake.wait_for(1, 2, 4)
    assert [state.is_loaded for state in store.states()] == [True, True, False, True] and store.num_bytes == 30
    lease = done(store.lease("b"))  # loads it again, in place of a
    fake.wait_for(1, 4, 5)
    with pytest.raises(InvalidRequest, match="takes 31 bytes, the limit of all is 30"):
        done(store.load("large", fake.write("large", 31)))
    held = done(store.lease("c"))
    with pytest.raises(Overloaded, match="pinned and running ones take 30 of 30") as caught:
        done(store.lease("a"))
    assert caught.value.retryable
    fake.wait_for(1, 4, 5)
    lease.release()
    assert done(store.lease("a")).version.number > 5
    held.release()


def test_an_unknown_name_is_looked_up_in_the_folder(fake: Engine) -> None:
    store = fake.store(folder=fake.folder / "all")
    fake.write("all/x")
    fake.write("secret")
    assert done(store.lease("x")).version.number == 1
    for name in ("../secret", "all/x", "..", ".", "", "missing", "x\\y", "x\0"):
        with pytest.raises(ModelNotFound):
            store.lease(name)


def test_another_folder_under_a_name_replaces_it_for_later_requests(fake: Engine) -> None:
    store = fake.store()
    one, two = fake.write("one"), fake.write("two")
    first = done(store.lease_folder("a", one))
    assert done(store.lease_folder("a", one)).version == first.version
    assert done(store.lease_folder("a", two)).version.digest != first.version.digest
    with pytest.raises(InvalidRequest, match="has no files"):
        done(store.lease_folder("a", "/missing"))
    assert done(store.lease_folder("a", two, in_place=True)).version.number > 2


def test_a_lease_that_is_garbage_ends(fake: Engine) -> None:
    store = fake.store()
    done(store.load("a", fake.write("a")))
    done(store.lease("a"))
    gc.collect()
    assert store.states()[0].running == 0


def test_a_restarted_engine_loads_an_adapter_again(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fake.store()
    done(store.load("a", fake.write("a")))
    monkeypatch.setattr(type(fake.client), "restarts", 1)
    assert not store.states()[0].is_loaded and store.num_bytes == 0
    assert done(store.lease("a")).version.number == 2


def test_a_thousand_loads_and_unloads_leave_nothing(fake: Engine) -> None:
    store = fake.store()
    folders = [fake.write(f"v{number}") for number in range(7)]
    for number in range(1000):
        done(store.load("a", folders[number % 7], in_place=True))
        done(store.lease("a")).release()
        if number % 3 == 0:
            store.unload("a")
        assert len(fake.runner.adapters.numbers) <= 4
    if store.states():
        store.unload("a")
    fake.wait_for()
    assert store.num_bytes == 0 and store.states() == [] and not store._versions and not fake.client._adapters
