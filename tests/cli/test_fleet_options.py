"""Fleet options: every setting reaches its field, and an error names its setting."""

from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.fleet_options import local_config
from chairlift.cli.replica_spec_options import replica_spec
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET
from chairlift.cli.settings.service_settings import LATENCY_TARGETS
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
