"""Fleet options: every setting reaches its field, and an error names its setting."""

import stat
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli import fleet_options
from chairlift.cli.fleet_options import local_config, replica_key
from chairlift.cli.replica_spec_options import replica_spec
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET
from chairlift.cli.settings.service_settings import LATENCY_TARGETS
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError

VALUES: dict[str, Any] = {
    "min_replicas": 2, "max_replicas": 9, "target_wait": 3.0, "target_concurrency": 11.0, "target_kv_usage": 0.5,
    "slo_ttft_ms": 900.0, "slo_itl_ms": 80.0, "slo_quantile": 0.9, "target_cpu": 0.6, "target_memory": 0.7,
    "target_gpu": 0.75, "scale_interval": 1.5, "stable_window": 40.0, "panic_window": 4.0, "scale_down_delay": 100.0,
    "reversal_delay": 200.0, "scale_to_zero_after": 50.0, "cold_start": 12.0, "max_cost_per_hour": 30.0,
    "replica_price": {"big": 3.0}, "replica_type": "big", "schedule": ["0 8 * * 1-5; 0 18 * * 1-5; 3; Europe/Berlin"],
    "scaling": "threshold", "dry_run": True, "replica_option": ["dtype=bfloat16", "no-enable-prefix-caching"],
    "replica_config": "replica.yaml", "replica_cpus": 2, "replica_gpus": 1, "gpu_ids": "0, 1",
    "replica_ports": "8101-8109", "state_dir": "state", "keep_replicas": True, "cluster": "local",
    "cluster_token_file": "token", "cluster_tls_ca": "ca", "cluster_tls_cert": "cert", "cluster_tls_key": "key",
    "fleet_name": "blue", "replica_drain_timeout": 5.0,
    "scale_up_limit": ["3/30"], "scale_down_limit": ["0.5x/60"], "threshold_cpu": "0.2:0.6",
    "threshold_memory": "off", "threshold_queue": "2:20", "replica_start_timeout": 6.0,
    "replica_unresponsive_timeout": 7.0,
}  # fmt: skip


def test_every_setting_of_the_fleet_is_in_these_tests() -> None:
    assert {setting.name for setting in (*FLEET, *AUTOSCALER, *LATENCY_TARGETS)} == VALUES.keys()


def test_a_replica_has_its_options_its_key_and_none_of_the_fleets_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    spec = replica_spec("folder", VALUES, "k")
    assert spec.model == str(tmp_path / "folder")
    assert spec.arguments == (
        "--config", str(tmp_path / "replica.yaml"), "--dtype", "bfloat16", "--no-enable-prefix-caching"
    )  # fmt: skip
    assert spec.environ["CHAIRLIFT_API_KEY"] == "k"
    assert spec.environ["CHAIRLIFT_PORT"] == spec.environ["CHAIRLIFT_ADMIN_KEY"] == "", "empty is the same as unset"
    assert "CHAIRLIFT_DTYPE" not in spec.environ, "the fleet has no setting of this name: it is for the replicas"
    monkeypatch.setenv("CHAIRLIFT_PORT", "9000")
    monkeypatch.setenv("CHAIRLIFT_ADMIN_KEY", "secret")
    assert replica_spec("folder", VALUES, "k").version == spec.version, "another shell does not replace the replicas"
    assert (spec.num_cpus, spec.num_gpus, spec.replica_type) == (2, 1, "big")
    local = local_config(VALUES, tmp_path)
    assert (local.ports, local.gpus, local.folder) == ((8101, 8109), ("0", "1"), tmp_path)


@pytest.mark.parametrize("text", ["8101", "a-b", "8101-", "-8101"])
def test_ports_are_a_range(text: str) -> None:
    with pytest.raises(ConfigError, match="must be FIRST-LAST"):
        local_config({"replica_ports": text}, Path("x"))


def test_the_key_of_the_replicas_is_made_once_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    key = replica_key(folder)
    assert len(key) >= 32 and replica_key(folder) == key and replica_key(tmp_path / "c") != key
    file = folder / fleet_options.REPLICA_KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    file.write_text("")  # cut by a full disk
    assert replica_key(folder) not in ("", key)


def test_replicas_get_both_keys_as_variables_and_keep_them_when_the_fleet_is_replaced(tmp_path: Path) -> None:
    def spec() -> ReplicaSpec:
        names = (fleet_options.REPLICA_KEY_FILE, fleet_options.REPLICA_ADMIN_KEY_FILE)
        return replica_spec("", {}, *(replica_key(tmp_path, name) for name in names))

    first = spec()
    key, admin_key = (first.environ[name] for name in ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY"))
    assert len(admin_key) >= 32 and key != admin_key and first.arguments == ()
    assert spec() == first, "the replicas of the fleet before would be replaced"
    assert stat.S_IMODE((tmp_path / fleet_options.REPLICA_ADMIN_KEY_FILE).stat().st_mode) == 0o600
    assert replica_spec("", {}, key).environ["CHAIRLIFT_ADMIN_KEY"] == "", "the fleet's own key is not the replicas'"


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"folder .*file.* cannot be used: .*Not a directory|File exists"):
        replica_key(tmp_path / "file")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / fleet_options.REPLICA_KEY_FILE).write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="has a key that is no text"):
        replica_key(tmp_path / "a")


def test_each_port_has_a_folder_of_its_own() -> None:
    environ = {"XDG_STATE_HOME": "/s"}
    assert fleet_options.state_folder({"port": 9000}, environ) == Path("/s/chairlift/fleet-9000")
    assert fleet_options.state_folder({}, environ) == Path("/s/chairlift/fleet-8000")
    assert fleet_options.state_folder({"state_dir": "/x"}, environ) == Path("/x")
    assert fleet_options.state_folder({}, {}).is_relative_to(Path.home())
