"""BatchStore: batches outlive the process and are each tenant's own; limits; what a kill leaves."""

import os
from pathlib import Path

import pytest

from chairlift.core.errors import NotFound, RateLimited, Unavailable
from chairlift.web.batch_api import batch_store
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.stored_batch import BatchStatus, StoredBatch


def batch(number: int, tenant: str = "alice") -> StoredBatch:
    return StoredBatch(
        id=f"batch_{number}", tenant=tenant, endpoint="/v1/completions", input_file_id="file-1",
        completion_window="24h", metadata={"a": "b"}, created_at=number, expires_at=number + 10,
    )  # fmt: skip


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests"
    path.write_bytes(b"one\n")
    return path


def test_a_batch_outlives_the_process_and_its_input(tmp_path: Path, requests: Path) -> None:
    store, first = BatchStore(tmp_path / "batches"), batch(1)
    store.add(first, requests)
    requests.unlink()
    first.enter(BatchStatus.IN_PROGRESS, 7)
    first.total, first.storage_problem = 5, "full"
    store.save(first)
    again = BatchStore(tmp_path / "batches")
    loaded = again.get("alice", "batch_1")
    first.storage_problem = ""
    assert loaded == first and again.unfinished() == [loaded] == again.of_tenant("alice")
    assert type(loaded.status) is BatchStatus and again.requests_path(loaded).read_bytes() == b"one\n"
    again.journal_path(loaded).write_bytes(b"x")
    again.remove_work(loaded)
    again.remove_work(loaded)
    assert os.listdir(tmp_path / "batches" / "batch_1") == ["batch.json"]


def test_input_of_another_file_system_is_copied(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def fail(*arguments: object) -> None:
        raise OSError(18, "cross-device link")

    monkeypatch.setattr(os, "link", fail)
    store, first = BatchStore(tmp_path / "batches"), batch(1)
    store.add(first, requests)
    assert store.requests_path(first).read_bytes() == b"one\n"


def test_batches_are_each_tenants_own(tmp_path: Path, requests: Path) -> None:
    store = BatchStore(tmp_path / "batches")
    store.add(batch(1), requests)
    for tenant, batch_id in (("bob", "batch_1"), ("alice", "../../x"), ("alice", "")):
        with pytest.raises(NotFound, match="there is no batch"):
            store.get(tenant, batch_id)
    assert store.of_tenant("bob") == []


def test_limits_of_open_and_of_all_batches(
    tmp_path: Path, requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(batch_store, "MAX_OPEN_BATCHES", 2)
    monkeypatch.setattr(batch_store, "MAX_BATCHES", 3)
    store = BatchStore(tmp_path / "batches")
    batches = [batch(number) for number in range(6)]
    for each in batches[:2]:
        store.add(each, requests)
    with pytest.raises(RateLimited, match="2 batches have not ended, the limit is 2"):
        store.check_room("alice")
    store.check_room("bob")
    for each in batches[:2]:
        each.enter(BatchStatus.COMPLETED, 1)
    for each in batches[2:]:
        store.add(each, requests)
    assert store.of_tenant("alice") == batches[2:], "those that have not ended are never forgotten"
    assert sorted(os.listdir(tmp_path / "batches")) == [each.id for each in batches[2:]]


def test_a_batch_that_cannot_be_written_is_not_there(tmp_path: Path, requests: Path) -> None:
    store = BatchStore(tmp_path / "batches")
    requests.unlink()
    with pytest.raises(Unavailable, match="No such file"):
        store.add(batch(1), requests)
    assert store.of_tenant("alice") == [] and os.listdir(tmp_path / "batches") == []


def test_what_a_kill_leaves_is_removed_and_what_is_unknown_stays(tmp_path: Path, requests: Path) -> None:
    BatchStore(tmp_path / "batches").add(batch(1), requests)
    for name in ("batch_2", "batch_3"):
        (tmp_path / "batches" / name).mkdir()
    (tmp_path / "batches" / "batch_3" / "batch.json").write_bytes(b'{"id": 5}')
    store = BatchStore(tmp_path / "batches")
    assert [each.id for each in store.of_tenant("alice")] == ["batch_1"]
    assert sorted(os.listdir(tmp_path / "batches")) == ["batch_1", "batch_3"]
