"""Fleet options: every setting reaches its field, and an error names its setting."""

from pathlib import Path

import pytest

from chairlift.cli.fleet_options import local_config
from chairlift.cli.replica_spec_options import replica_spec
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET
from chairlift.cli.settings.service_settings import LATENCY_TARGETS
from chairlift.core.errors import ConfigError
from support_fleet_settings import VALUES


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
