"""replica_spec: what the replicas get of the fleet's options; updated_spec: an update keeps what it does not name."""

from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.cli import replica_spec_options
from chairlift.cli.command_line import build_parser
from chairlift.cli.replica_spec_options import replica_spec, updated_spec
from chairlift.cli.settings import settings
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cluster.base import ReplicaSpec
from chairlift.core.errors import ConfigError


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
        arguments = build_parser(["serve"]).parse_args(["serve", "m", *words])
        options = resolve_group(settings.SERVER, arguments, process_environment())
        assert options.get("ui", True) is is_served


def test_a_name_of_the_hub_stays() -> None:
    assert replica_spec("Qwen/Qwen3-0.6B", {}, "k").model == "Qwen/Qwen3-0.6B"
    assert replica_spec("", {}, "k").model == ""


def test_an_update_keeps_what_it_does_not_name() -> None:
    spec = ReplicaSpec(model="a", arguments=("--dtype", "float32"), num_cpus=2)
    changed = replace(spec, arguments=("--dtype", "float32", "--seed", "1"))
    assert updated_spec(None, ("--seed", "1"), spec) == changed
    assert updated_spec("b", None, spec) == replace(spec, model="b")


@pytest.mark.parametrize(("options", "message"), [
    (["dtyp=x"], "`serve` has no option --dtyp"), (["port=5"], "the fleet sets port itself"),
    (["max-running-requests=x"], "--max-running-requests must be an integer, got 'x'"),
    (["--host=a"], "the fleet sets host itself"), (["dtype"], "--dtype"),
])  # fmt: skip
def test_an_option_that_serve_does_not_take_is_rejected(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match="replica_option") as caught:
        replica_spec("", {"replica_option": options}, "k")
    assert message in caught.value.message


def test_an_update_keeps_the_options_that_it_does_not_name() -> None:
    spec = replica_spec("", {"replica_option": ["max-memory=1GiB", "dtype=float32", "no-enable-prefix-caching"]}, "k")
    updated = replica_spec_options.updated_spec(None, ("--dtype", "bfloat16", "--enable-prefix-caching"), spec)
    assert updated.arguments == ("--max-memory", "1GiB", "--dtype", "bfloat16", "--enable-prefix-caching")
    assert replica_spec_options.updated_spec(None, None, spec) == spec


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--port=1",), ("--config", "x"), ("--model", "x")])
def test_an_update_may_not_set_what_the_fleet_sets(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="the fleet sets it itself"):
        replica_spec_options.updated_spec(None, words, replica_spec("", {}, "k"))
