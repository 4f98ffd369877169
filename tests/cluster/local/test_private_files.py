"""StateFolder: its folders and files are private, whatever the umask is."""

import os
from pathlib import Path

from chairlift.cluster.local.process_record import ProcessRecord
from support_local_cluster import opened


def test_files_are_private_whatever_the_umask_is(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        folder = opened(tmp_path / "a" / "fleet")
        replica_id = folder.create()
        os.close(folder.take_lock(replica_id))
        folder.write(ProcessRecord(replica_id=replica_id, port=1))
        folder.close()
    finally:
        os.umask(mask)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "fleet").rglob("*")}
    assert len(modes) == 5
    assert modes == {path: 0o700 if path.is_dir() else 0o600 for path in modes}
    assert (tmp_path / "a" / "fleet").stat().st_mode & 0o777 == 0o700
