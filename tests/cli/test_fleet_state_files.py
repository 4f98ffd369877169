"""replica_key: made once, private, and kept for the next fleet; state_folder: one for each port."""

import stat
from pathlib import Path

import pytest

from chairlift.cli import fleet_state_files
from chairlift.cli.fleet_state_files import replica_key
from chairlift.cli.replica_spec_options import replica_spec
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError


def test_the_key_of_the_replicas_is_made_once_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    key = replica_key(folder)
    assert len(key) >= 32 and replica_key(folder) == key and replica_key(tmp_path / "c") != key
    file = folder / fleet_state_files.REPLICA_KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    file.write_text("")  # cut by a full disk
    assert replica_key(folder) not in ("", key)


def test_replicas_get_both_keys_as_variables_and_keep_them_when_the_fleet_is_replaced(tmp_path: Path) -> None:
    def spec() -> ReplicaSpec:
        names = (fleet_state_files.REPLICA_KEY_FILE, fleet_state_files.REPLICA_ADMIN_KEY_FILE)
        return replica_spec("", {}, *(replica_key(tmp_path, name) for name in names))

    first = spec()
    key, admin_key = (first.environ[name] for name in ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY"))
    assert len(admin_key) >= 32 and key != admin_key and first.arguments == ()
    assert spec() == first, "the replicas of the fleet before would be replaced"
    assert stat.S_IMODE((tmp_path / fleet_state_files.REPLICA_ADMIN_KEY_FILE).stat().st_mode) == 0o600
    assert replica_spec("", {}, key).environ["CHAIRLIFT_ADMIN_KEY"] == "", "the fleet's own key is not the replicas'"


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"folder .*file.* cannot be used: .*Not a directory|File exists"):
        replica_key(tmp_path / "file")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / fleet_state_files.REPLICA_KEY_FILE).write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="has a key that is no text"):
        replica_key(tmp_path / "a")


def test_each_port_has_a_folder_of_its_own() -> None:
    environ = {"XDG_STATE_HOME": "/s"}
    assert fleet_state_files.state_folder({"port": 9000}, environ) == Path("/s/chairlift/fleet-9000")
    assert fleet_state_files.state_folder({}, environ) == Path("/s/chairlift/fleet-8000")
    assert fleet_state_files.state_folder({"state_dir": "/x"}, environ) == Path("/x")
    assert fleet_state_files.state_folder({}, {}).is_relative_to(Path.home())


def test_a_user_without_a_home_directory_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_state_files, "user_state_folder", lambda environ: None)
    with pytest.raises(ConfigError, match="no home directory") as error:
        fleet_state_files.state_folder({}, {})
    assert error.value.details["option"] == "state_dir"
    assert fleet_state_files.state_folder({"state_dir": "/x"}, {}) == Path("/x")
