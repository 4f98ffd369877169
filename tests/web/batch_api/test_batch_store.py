"""BatchStore: batches outlive the process and are each tenant's own; limits; what a kill leaves."""

import asyncio
import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import NotFound, RateLimited, Unavailable
from chairlift.web.batch_api import batch_store
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch


def batch(number: int, tenant: str = "alice", name: str = "") -> StoredBatch:
    return StoredBatch(
        id=f"batch_{name or number}", tenant=tenant, endpoint="/v1/completions", input_file_id="file-1",
        completion_window="24h", metadata={"a": "b"}, created_at=number, expires_at=number + 10,
    )  # fmt: skip


def store_in(path: Path, usage: DiskUsage | None = None) -> BatchStore:
    return BatchStore(path / "batches", usage or DiskUsage(10**9))


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests"
    path.write_bytes(b"one\n")
    return path


def test_a_batch_outlives_the_process_and_its_input(tmp_path: Path, requests: Path) -> None:
    async def scenario() -> None:
        store, first = store_in(tmp_path), batch(1)
        await store.add(first, requests)
        requests.unlink()
        first.enter(BatchStatus.IN_PROGRESS, 7)
        first.total, first.storage_problem, first.models = 5, "full", {"": "fake"}
        await store.save(first)
        again = store_in(tmp_path)
        loaded = again.get("alice", "batch_1")
        first.storage_problem = ""
        assert loaded == first and again.unfinished() == [loaded] == again.of_tenant("alice")
        assert type(loaded.status) is BatchStatus and again.requests_path(loaded).read_bytes() == b"one\n"
        again.responses_path(loaded).write_bytes(b"x")
        again.errors_path(loaded).write_bytes(b"x")
        again.remove_work(loaded)
        again.remove_work(loaded)
        assert os.listdir(tmp_path / "batches" / "batch_1") == ["batch.json"]

    asyncio.run(scenario())


def test_input_of_another_file_system_is_copied(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def fail(*arguments: object) -> None:
        raise OSError(18, "cross-device link")

    monkeypatch.setattr(os, "link", fail)
    store, first = store_in(tmp_path), batch(1)
    asyncio.run(store.add(first, requests))
    assert store.requests_path(first).read_bytes() == b"one\n"


def test_batches_are_each_tenants_own(tmp_path: Path, requests: Path) -> None:
    store = store_in(tmp_path)
    asyncio.run(store.add(batch(1), requests))
    for tenant, batch_id in (("bob", "batch_1"), ("alice", "../../x"), ("alice", "")):
        with pytest.raises(NotFound, match="there is no batch"):
            store.get(tenant, batch_id)
    assert store.of_tenant("bob") == []


def test_limits_of_open_and_of_all_batches(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_store, "MAX_OPEN_BATCHES", 2)
    monkeypatch.setattr(batch_store, "MAX_BATCHES", 3)

    async def scenario() -> None:
        store = store_in(tmp_path)
        batches = [batch(number) for number in range(6)]
        for each in batches[:2]:
            await store.add(each, requests)
        with pytest.raises(RateLimited, match="2 batches have not ended, the limit is 2"):
            store.check_room("alice")
        store.check_room("bob")
        for each in batches[:2]:
            each.enter(BatchStatus.COMPLETED, 1)
        monkeypatch.setattr(batch_store, "MAX_OPEN_BATCHES", 10)
        for each in batches[2:]:
            await store.add(each, requests)
        assert store.of_tenant("alice") == batches[2:], "those that have not ended are never forgotten"
        assert sorted(os.listdir(tmp_path / "batches")) == [each.id for each in batches[2:]]

    asyncio.run(scenario())


def test_the_limit_holds_for_batches_that_are_created_at_once(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_store, "MAX_OPEN_BATCHES", 5)

    async def scenario() -> None:
        store = store_in(tmp_path)
        added = await asyncio.gather(
            *(store.add(batch(number), requests) for number in range(20)), return_exceptions=True
        )
        assert added.count(None) == 5 and sum(isinstance(each, RateLimited) for each in added) == 15
        assert len(store.of_tenant("alice")) == 5 == len(os.listdir(tmp_path / "batches"))

    asyncio.run(scenario())


def test_batches_are_listed_while_others_are_written(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """No thread changes the batches: those that are being written come into the list on the event loop."""
    store, loop_thread, written = store_in(tmp_path), threading.current_thread(), list[str]()

    class CheckedBatches(dict[str, StoredBatch]):
        def __setitem__(self, key: str, value: StoredBatch) -> None:
            assert threading.current_thread() is loop_thread
            written.append(key)
            super().__setitem__(key, value)

    monkeypatch.setattr(store, "_batches", CheckedBatches())

    async def scenario() -> None:
        adding = [asyncio.create_task(store.add(batch(number), requests)) for number in range(5)]
        while not all(task.done() for task in adding):
            assert [each.id for each in store.of_tenant("alice")] == sorted(written) and store.unfinished() is not None
            await asyncio.sleep(0)
        assert len(written) == 5

    asyncio.run(scenario())


def test_a_later_state_is_never_replaced_by_an_earlier_one(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    write, gate = batch_store.write_atomically, threading.Event()

    async def scenario() -> None:
        store, one = store_in(tmp_path), batch(1)
        await store.add(one, requests)

        def slow(path: Path, content: bytes) -> None:
            if b'"in_progress"' in content:
                assert gate.wait(20)
            write(path, content)

        monkeypatch.setattr(batch_store, "write_atomically", slow)
        one.enter(BatchStatus.IN_PROGRESS, 7)
        first = asyncio.create_task(store.save(one))
        await asyncio.sleep(0.01)
        one.enter(BatchStatus.CANCELLING, 8)
        second = asyncio.create_task(store.save(one))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, second)
        assert store_in(tmp_path).get("alice", "batch_1").status is BatchStatus.CANCELLING

    asyncio.run(scenario())


def test_batches_of_one_second_keep_their_order(tmp_path: Path, requests: Path) -> None:
    async def scenario() -> None:
        store = store_in(tmp_path)
        for name in "cab":
            await store.add(batch(5, name=name), requests)
        again = store_in(tmp_path)
        await again.add(batch(5, name="0"), requests)
        ids = ["batch_c", "batch_a", "batch_b", "batch_0"]
        assert [each.id for each in again.of_tenant("alice")] == ids
        assert [each.id for each in store_in(tmp_path).of_tenant("alice")] == ids

    asyncio.run(scenario())


def test_requests_and_responses_count_until_the_end(tmp_path: Path, requests: Path) -> None:
    async def scenario() -> None:
        usage = DiskUsage(20)
        store, one = store_in(tmp_path, usage), batch(1)
        usage.set("file-1", "alice", 4, (requests.stat().st_dev, requests.stat().st_ino))
        await store.add(one, requests)
        assert usage.num_bytes() == 4, "the requests are the file, which counts once"
        usage.remove("file-1")
        assert usage.num_bytes("alice") == 4, "its deletion frees nothing while the batch runs"
        store.responses_path(one).write_bytes(b"x" * 17)
        store.count(one)
        assert usage.num_bytes() == 21
        with pytest.raises(RateLimited, match="have 21 bytes, the limit of their sum is 20"):
            await store.add(batch(2), requests)
        loaded = DiskUsage(20)
        BatchStore(tmp_path / "batches", loaded)
        assert loaded.num_bytes("alice") == 21
        store.remove_work(one)
        assert usage.num_bytes() == 0

    asyncio.run(scenario())


def test_a_batch_that_cannot_be_written_is_not_there(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def fail(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        usage = DiskUsage(1000)
        store = store_in(tmp_path, usage)
        with monkeypatch.context() as patch:
            patch.setattr(batch_store, "write_atomically", fail)
            with pytest.raises(Unavailable, match="No space left"):
                await store.add(batch(1), requests)
        requests.unlink()
        with pytest.raises(FileNotFoundError):
            await store.add(batch(1), requests)
        assert store.of_tenant("alice") == [] and os.listdir(tmp_path / "batches") == [] and usage.num_bytes() == 0

    asyncio.run(scenario())


def test_a_client_that_leaves_while_its_batch_is_written_leaves_none(tmp_path: Path, requests: Path) -> None:
    async def scenario() -> None:
        store = store_in(tmp_path)
        adding = asyncio.create_task(store.add(batch(1), requests))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert store.of_tenant("alice") == [] and os.listdir(tmp_path / "batches") == []

    asyncio.run(scenario())


ODD = {
    "no JSON": b"{", "a list": b"[]", "nothing": b"", "no fields": b'{"id": "batch_2"}', "no UTF-8": b'{"id": "\xff"}'
}  # fmt: skip
CHANGED: dict[str, dict[str, Any]] = {
    "another id": {"id": "batch_9"}, "a status": {"status": "x"}, "a text": {"created_at": "5"},
    "a number": {"tenant": 5}, "a list of texts": {"errors": ["x"]}, "times": {"times": {"failed_at": "x"}},
    "metadata": {"metadata": []},
}  # fmt: skip


@pytest.mark.parametrize("name", [*ODD, *CHANGED])
def test_one_odd_entry_does_not_hide_the_others(tmp_path: Path, requests: Path, name: str) -> None:
    async def scenario() -> None:
        store = store_in(tmp_path)
        for number in (1, 2):
            await store.add(batch(number), requests)

    asyncio.run(scenario())
    path = tmp_path / "batches" / "batch_2" / "batch.json"
    content = ODD[name] if name in ODD else json.dumps(json.loads(path.read_bytes()) | CHANGED[name]).encode()
    path.write_bytes(content)
    (tmp_path / "batches" / "batch_3").write_bytes(b"a plain file")
    (tmp_path / "batches" / "batch_4" / "batch.json").mkdir(parents=True)
    (tmp_path / "batches" / "batch_5").mkdir()  # a kill within the creation
    store = store_in(tmp_path)
    assert [each.id for each in store.of_tenant("alice")] == ["batch_1"] and path.read_bytes() == content
    assert sorted(os.listdir(tmp_path / "batches")) == ["batch_1", "batch_2", "batch_3", "batch_4"]


def test_a_description_of_an_earlier_version_is_taken(tmp_path: Path, requests: Path) -> None:
    asyncio.run(store_in(tmp_path).add(batch(1), requests))
    path = tmp_path / "batches" / "batch_1" / "batch.json"
    values = json.loads(path.read_bytes())
    for name in ("number", "models", "fingerprint", "output_file_id"):
        del values[name]
    path.write_text(json.dumps(values | {"of a later version": 1}))
    loaded = store_in(tmp_path).get("alice", "batch_1")
    assert (loaded.number, loaded.models, loaded.output_file_id) == (0, {}, None)


def test_a_tenant_with_many_batches_makes_none_of_another_disappear(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_store, "MAX_BATCHES", 6)

    async def scenario() -> None:
        store = store_in(tmp_path)
        for number in range(12):
            each = batch(number, "bob" if number in (0, 5) else "alice")
            await store.add(each, requests)
            each.enter(BatchStatus.COMPLETED, 1)
        assert [each.id for each in store.of_tenant("bob")] == ["batch_0", "batch_5"]
        assert [each.id for each in store.of_tenant("alice")] == [f"batch_{number}" for number in range(8, 12)]
        assert len(os.listdir(tmp_path / "batches")) == 6
        together = [batch(number, "carol") for number in range(20, 23)]
        await asyncio.gather(*(store.add(each, requests) for each in together))
        assert len(os.listdir(tmp_path / "batches")) == 6 and store.of_tenant("carol") == together

    asyncio.run(scenario())


def test_a_client_that_leaves_while_an_old_batch_is_forgotten_leaves_none(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It would never begin: its creation is what starts it."""
    monkeypatch.setattr(batch_store, "MAX_BATCHES", 1)

    async def scenario() -> None:
        store, first = store_in(tmp_path), batch(1)
        await store.add(first, requests)
        first.enter(BatchStatus.COMPLETED, 1)
        remove, is_removing, gate = store._remove_folder, threading.Event(), threading.Event()

        def slow(batch_id: str) -> None:
            is_removing.set()
            assert gate.wait(20)
            remove(batch_id)

        monkeypatch.setattr(store, "_remove_folder", slow)
        adding = asyncio.create_task(store.add(batch(2), requests))
        while not is_removing.is_set():
            await asyncio.sleep(0.001)
        adding.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert store.of_tenant("alice") == [] and os.listdir(tmp_path / "batches") == []

    asyncio.run(scenario())
