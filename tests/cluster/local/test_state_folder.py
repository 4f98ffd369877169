"""StateFolder: one controller, private files, records replaced as a whole, locks that only a living process holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.cluster.local import state_folder
from chairlift.cluster.local.process_record import ProcessRecord
from chairlift.core.cluster_errors import ClusterFailed
from support_local_cluster import opened


def test_a_second_controller_is_refused_and_both_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_folder, "LOCK_SECONDS", 0.0)
    first = opened(tmp_path)
    with pytest.raises(ClusterFailed, match=f"process {os.getpid()}, uses the folder {tmp_path}"):
        opened(tmp_path)
    first.close()
    first.close()
    opened(tmp_path).close()


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "fleet", tmp_path / "file"):
        with pytest.raises(ClusterFailed, match=r"cannot use the folder .* a file has its name .* --state-dir"):
            opened(path)


def test_a_full_disk_costs_the_note_of_the_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    opened(tmp_path).close()
    opened(tmp_path).close()


def test_what_is_no_folder_of_a_replica_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "replicas" / "lost+found").mkdir(parents=True)
    for name in (".DS_Store", "r-file"):
        (tmp_path / "replicas" / name).touch()
    folder = opened(tmp_path)
    assert dict(folder.records()) == {}
    folder.close()


def test_a_folder_that_others_use_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    opened(tmp_path).close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "replicas").stat().st_mode & 0o777 == 0o700


def test_a_lock_is_held_as_long_as_the_process_that_inherited_it(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    replica_id = folder.create()
    assert not folder.is_locked(replica_id)
    lock = folder.take_lock(replica_id)
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
    os.close(lock)
    assert folder.is_locked(replica_id) and folder.is_locked(replica_id)
    process.communicate()
    assert not folder.is_locked(replica_id)
    folder.close()


def test_children_of_a_replica_do_not_inherit_its_lock(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    replica_id = folder.create()
    lock = folder.take_lock(replica_id)
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '30'], stdout=subprocess.DEVNULL); print(p.pid)"
    done = subprocess.run([sys.executable, "-S", "-c", code], pass_fds=(lock,), stdout=subprocess.PIPE, timeout=30)
    os.close(lock)
    assert not folder.is_locked(replica_id)
    os.kill(int(done.stdout), 9)
    folder.close()


@pytest.mark.parametrize("content", ["", "x", "1", "-5", "0"])
def test_a_process_id_that_is_none_is_none(tmp_path: Path, content: str) -> None:
    folder = opened(tmp_path)
    replica_id = folder.create()
    assert folder.pid(replica_id) is None
    (folder.path(replica_id) / "pid").write_text(content)
    assert folder.pid(replica_id) is None
    (folder.path(replica_id) / "pid").write_text("321")
    assert folder.pid(replica_id) == 321
    folder.close()


def test_records_are_read_and_broken_ones_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = opened(tmp_path)
    good, empty, half, foreign = (folder.create() for _ in range(4))
    folder.write(ProcessRecord(replica_id=good, port=1))
    (folder.path(half) / "record.json").write_text('{"replica_id": "')
    (folder.path(foreign) / "record.json").write_text(ProcessRecord(replica_id=good, port=1).to_json())
    assert dict(folder.records()) == {
        good: ProcessRecord(replica_id=good, port=1), empty: None, half: None, foreign: None,
    }  # fmt: skip
    assert half in caplog.text and foreign in caplog.text and empty not in caplog.text
    folder.remove(good)
    folder.remove(good)
    assert good not in dict(folder.records())
    folder.close()


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened(tmp_path)
    replica_id = folder.create()
    folder.write(ProcessRecord(replica_id=replica_id, port=1))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="disk full"):
        folder.write(ProcessRecord(replica_id=replica_id, port=2))
    assert dict(folder.records())[replica_id] == ProcessRecord(replica_id=replica_id, port=1)
    folder.close()
