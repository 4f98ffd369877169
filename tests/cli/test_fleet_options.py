"""Fleet options: every setting reaches its field, and an error names its setting."""

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chairlift.autoscaler.config import AutoscalerConfig, StepLimit, ThresholdConfig
from chairlift.autoscaler.limits.schedule import Schedule
from chairlift.cli import fleet_options
from chairlift.cli.command_line import build_parser
from chairlift.cli.fleet_options import autoscaler_config, local_config, replica_key, replica_spec, updated_spec
from chairlift.cli.settings import settings
from chairlift.cli.settings.fleet_settings import AUTOSCALER, FLEET
from chairlift.cli.settings.service_settings import LATENCY_TARGETS
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError
from support_shares import for_each

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


def test_every_setting_of_the_autoscaler_reaches_its_field() -> None:
    config = autoscaler_config(VALUES)
    assert (config.min_replicas, config.max_replicas, config.interval_seconds) == (2, 9, 1.5)
    assert (config.idle_seconds, config.cold_start_seconds, config.is_dry_run) == (50.0, 12.0, True)
    targets, windows, budget = config.targets, config.windows, config.budget
    assert (targets.wait_seconds, targets.concurrency, targets.kv_usage_ratio) == (3.0, 11.0, 0.5)
    assert (targets.ttft_seconds, targets.itl_seconds) == (0.9, 0.08)
    assert (targets.cpu_ratio, targets.memory_ratio, targets.gpu_ratio) == (0.6, 0.7, 0.75)
    assert (windows.stable_seconds, windows.panic_seconds) == (40.0, 4.0)
    assert (windows.stabilisation_seconds, windows.reversal_seconds) == (100.0, 200.0)
    assert (budget.cost_per_hour, budget.prices, budget.replica_type) == (30.0, {"big": 3.0}, "big")
    start, end = "0 8 * * 1-5", "0 18 * * 1-5"
    assert config.schedules == (Schedule(start=start, end=end, replicas=3, time_zone="Europe/Berlin"),)
    assert config.thresholds is not None and autoscaler_config({}).thresholds is None


def test_defaults_are_those_that_the_help_shows() -> None:
    shown = {setting.name: setting.default for setting in AUTOSCALER} | {each.name: each.default for each in FLEET}
    given = {name: value for name, value in shown.items() if value != "" and name in VALUES}
    assert autoscaler_config(given) == replace(autoscaler_config({}), budget=autoscaler_config(given).budget)
    assert autoscaler_config({}).targets == AutoscalerConfig().targets


def test_the_replicas_send_their_traces_where_the_fleet_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHAIRLIFT_OTLP_ENDPOINT", "http://c")
    monkeypatch.chdir(tmp_path)
    options = {"otlp_endpoint": "http://c", "trace_sample_ratio": 0.1, "otlp_headers_file": "h"}
    environ = replica_spec("", options, "").environ
    assert {name: value for name, value in environ.items() if value} == {
        "CHAIRLIFT_OTLP_ENDPOINT": "http://c", "CHAIRLIFT_TRACE_SAMPLE_RATIO": "0.1",
        "CHAIRLIFT_OTLP_HEADERS_FILE": str(tmp_path / "h"),
    }  # fmt: skip
    assert replica_spec("", {}, "").environ["CHAIRLIFT_OTLP_ENDPOINT"] == ""


def test_the_replicas_serve_no_page_where_the_fleet_serves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replica_spec("", {"ui": True}, "").environ["CHAIRLIFT_UI"] == ""
    spec = replica_spec("", {"ui": False}, "")
    for words, is_served in ((spec.arguments, False), (("--ui",), True)):
        for name, value in spec.environ.items():
            monkeypatch.setenv(name, value)
        arguments = build_parser().parse_args(["serve", "m", *words])
        options = settings.resolve_group(settings.SERVER, arguments, settings.process_environment())
        assert options.get("ui", True) is is_served


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


def test_a_name_of_the_hub_stays() -> None:
    assert replica_spec("Qwen/Qwen3-0.6B", {}, "k").model == "Qwen/Qwen3-0.6B"
    assert replica_spec("", {}, "k").model == ""


def test_an_update_keeps_what_it_does_not_name() -> None:
    spec = ReplicaSpec(model="a", arguments=("--dtype", "float32"), num_cpus=2)
    changed = replace(spec, arguments=("--dtype", "float32", "--seed", "1"))
    assert updated_spec(None, ("--seed", "1"), spec) == changed
    assert updated_spec("b", None, spec) == replace(spec, model="b")


@for_each(("options", "message"), [
    ({"min_replicas": 5, "max_replicas": 4}, "min_replicas must be at most max_replicas (4), got 5"),
    ({"max_replicas": 0}, "max_replicas must be above 0, got 0"),
    ({"target_wait": 0.0}, "target_wait must be above 0, got 0"),
    ({"target_cpu": 1.5}, "target_cpu must be above 0 and at most 1, got 1.5"),
    ({"panic_window": 70.0}, "panic_window must be at most stable_seconds (60), got 70"),
    ({"scale_interval": 0.0}, "scale_interval must be above 0"),
    ({"max_cost_per_hour": 3.0}, "max_cost_per_hour needs a price"),
    ({"schedule": ["0 8 * * *"]}, "schedule '0 8 * * *' must be START;END;N"),
    ({"schedule": ["0 8 * *;0 9 * * *;1"]}, "schedule '0 8 * *;0 9 * * *;1': "),
    ({"schedule": ["0 8 * * *;0 9 * * *;1;Mars"]}, "schedule '0 8 * * *;0 9 * * *;1;Mars': time zone 'Mars'"),
])  # fmt: skip
def test_an_error_of_the_autoscaler_names_its_setting(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        autoscaler_config(options)
    assert caught.value.message.startswith(message), caught.value.message
    assert caught.value.details["option"] == message.partition(" ")[0]


@pytest.mark.parametrize(("options", "message"), [
    (["dtyp=x"], "`serve` has no option --dtyp"), (["port=5"], "the fleet sets port itself"),
    (["max-running-requests=x"], "--max-running-requests must be an integer, got 'x'"),
    (["--host=a"], "the fleet sets host itself"), (["dtype"], "--dtype"),
])  # fmt: skip
def test_an_option_that_serve_does_not_take_is_rejected(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match="replica_option") as caught:
        replica_spec("", {"replica_option": options}, "k")
    assert message in caught.value.message


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


@for_each(
    ("name", "value"),
    [
        ("slo_quantile", 95.0), ("slo_quantile", 0.0), ("slo_quantile", float("nan")), ("replica_start_timeout", 0.0),
        ("replica_unresponsive_timeout", 0.0), ("replica_drain_timeout", -5.0), ("replica_cpus", -1),
        ("replica_gpus", -1),
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        autoscaler_config({name: value})


def test_an_update_keeps_the_options_that_it_does_not_name() -> None:
    spec = replica_spec("", {"replica_option": ["max-memory=1GiB", "dtype=float32", "no-enable-prefix-caching"]}, "k")
    updated = fleet_options.updated_spec(None, ("--dtype", "bfloat16", "--enable-prefix-caching"), spec)
    assert updated.arguments == ("--max-memory", "1GiB", "--dtype", "bfloat16", "--enable-prefix-caching")
    assert fleet_options.updated_spec(None, None, spec) == spec


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--port=1",), ("--config", "x"), ("--model", "x")])
def test_an_update_may_not_set_what_the_fleet_sets(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="the fleet sets it itself"):
        fleet_options.updated_spec(None, words, replica_spec("", {}, "k"))


def test_thresholds_and_step_limits() -> None:
    given = {
        "scaling": "threshold", "threshold_cpu": "off", "threshold_memory": "0.4:0.9", "threshold_queue": "2:8",
        "scale_up_limit": ["4/60", "0.5x/30"], "scale_down_limit": ["1/300"], "target_gpu": 0.6,
    }  # fmt: skip
    config = autoscaler_config(given)
    assert config.thresholds == ThresholdConfig(
        cpu_low=None, cpu_high=None, memory_low=0.4, memory_high=0.9, queue_low=2.0, queue_high=8.0
    )
    assert config.growth_limits == (StepLimit(num_replicas=4), StepLimit(ratio=0.5, period_seconds=30.0))
    assert config.shrink_limits == (StepLimit(num_replicas=1, period_seconds=300.0),)
    assert config.targets.gpu_ratio == 0.6
    assert autoscaler_config({"scaling": "threshold"}).thresholds == ThresholdConfig()


@for_each(
    ("name", "value"),
    [
        ("threshold_cpu", "0.5"), ("threshold_queue", "9:1"), ("threshold_memory", "a:b"), ("scale_up_limit", ["4"]),
        ("scale_up_limit", ["x/60"]), ("scale_down_limit", ["0/60"]), ("scale_down_limit", ["1/0"]),
    ],
)  # fmt: skip
def test_a_threshold_or_limit_that_is_not_valid_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        autoscaler_config({"scaling": "threshold", name: value})


def test_a_pool_that_nothing_could_wake_does_not_go_to_zero() -> None:
    with pytest.raises(ConfigError, match="min_replicas 0 needs a query held_requests"):
        fleet_options.check_wake_signal(autoscaler_config({"min_replicas": 0}), {"queue": "x"})
    fleet_options.check_wake_signal(autoscaler_config({"min_replicas": 0}), {"held_requests": "x"})
    fleet_options.check_wake_signal(autoscaler_config({}), {})


def test_each_port_has_a_folder_of_its_own() -> None:
    environ = {"XDG_STATE_HOME": "/s"}
    assert fleet_options.state_folder({"port": 9000}, environ) == Path("/s/chairlift/fleet-9000")
    assert fleet_options.state_folder({}, environ) == Path("/s/chairlift/fleet-8000")
    assert fleet_options.state_folder({"state_dir": "/x"}, environ) == Path("/x")
    assert fleet_options.state_folder({}, {}).is_relative_to(Path.home())
