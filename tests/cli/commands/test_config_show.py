"""`chairlift config show`: every setting once, with its value and source, and no API key."""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.cli.main import main
from chairlift.cli.settings import settings


def run_show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", "show", *words]) == 0
    return capsys.readouterr().out


def row(out: str, name: str) -> list[str]:
    """Return value and origin of the first row of a name."""
    line = next(line for line in out.splitlines() if line.split()[0] == name and line.startswith("  "))
    return [part for part in line.strip().split("  ") if part][1:]


def test_every_setting_is_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys)
    titles = [line for line in out.splitlines() if not line.startswith(" ")]
    assert titles == [*(title for title, _ in settings.GROUPS), "keys"]
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert names == [setting.dest for _, group in settings.GROUPS for setting in group] + list(settings.SECRETS)


def test_values_come_from_flag_environment_file_or_default(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("# hello\nport: 81\nhost: a\nserved_model_name: [x, y]\nmodel: m\n", encoding="utf-8")
    monkeypatch.setenv("CHAIRLIFT_HOST", "b")
    monkeypatch.setenv("CHAIRLIFT_DRAIN_TIMEOUT", "5")
    out = run_show(capsys, "--config", str(path), "--drain-timeout", "6", "--overlap")
    assert [part.strip() for part in row(out, "port")] == ["81", f"{path} line 2"]
    assert [part.strip() for part in row(out, "host")] == ["b", "environment CHAIRLIFT_HOST"]
    assert [part.strip() for part in row(out, "drain_timeout")] == ["6.0", "flag --drain-timeout"]
    assert [part.strip() for part in row(out, "served_model_name")] == ['["x", "y"]', f"{path} line 4"]
    assert [part.strip() for part in row(out, "model")] == ["m", f"{path} line 5"]
    assert [part.strip() for part in row(out, "overlap")] == ["true", "flag --overlap"]
    assert [part.strip() for part in row(out, "max_queue_wait")] == ["no limit", "default"]
    assert [part.strip() for part in row(out, "temperature")] == ["the model's, else 1", "model"]
    assert [part.strip() for part in row(out, "num_blocks")] == ["as many as --max-memory holds", "default"]
    assert [part.strip() for part in row(out, "engine_mode")] == ["process", "default"]


def test_json_has_the_same_with_stable_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("max_body_bytes: 5MB\nstop_token_ids: [1, 2]\n", encoding="utf-8")
    report: dict[str, Any] = json.loads(run_show(capsys, "--config", str(path), "--json"))
    assert report["config"] == str(path) and report["secrets"] == dict.fromkeys(settings.SECRETS, False)
    server, sampling = report["settings"]["server"], report["settings"]["sampling"]
    assert server["max_body_bytes"] == {"value": 5_000_000, "source": "file", "where": f"{path} line 1"}
    assert server["insecure"] == {"value": False, "source": "default", "where": ""}
    assert sampling["stop_token_ids"]["value"] == [1, 2]
    assert sampling["top_k"] == {"value": None, "source": "model", "where": "", "otherwise": "the model's, else 0"}
    assert json.loads(run_show(capsys, "--json"))["config"] is None


@pytest.mark.full
def test_keys_are_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_API_KEY", "sk-1")
    for words in ([], ["--json"], ["-v"]):
        out = run_show(capsys, *words)
        assert "sk-1" not in out + capsys.readouterr().err
    assert row(run_show(capsys), "CHAIRLIFT_API_KEY")[0].strip() == "set, and not shown"
    assert json.loads(run_show(capsys, "--json"))["secrets"]["CHAIRLIFT_API_KEY"] is True


def test_control_characters_of_a_file_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text('host: "a\\e[2J\\nb"\n', encoding="utf-8")
    assert "\x1b" not in run_show(capsys, "--config", str(path))


def test_a_value_that_cannot_be_parsed_is_rejected(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAIRLIFT_PORT", "tcp://10.0.0.1:80")
    assert main(["config", "show"]) == 2
    err = capsys.readouterr().err
    assert err == "chairlift: CHAIRLIFT_PORT must be an integer, got 'tcp://10.0.0.1:80'\n"


def test_settings_of_the_router_have_values_and_sources(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("replica: [http://a, http://b]\nmax_attempts: 4\n", encoding="utf-8")
    monkeypatch.setenv("CHAIRLIFT_PROBE_INTERVAL", "9")
    out = run_show(capsys, "--config", str(path), "--policy", "random")
    assert [part.strip() for part in row(out, "replica")] == ['["http://a", "http://b"]', f"{path} line 1"]
    assert [part.strip() for part in row(out, "max_attempts")] == ["4", f"{path} line 2"]
    assert [part.strip() for part in row(out, "probe_interval")] == ["9.0", "environment CHAIRLIFT_PROBE_INTERVAL"]
    assert [part.strip() for part in row(out, "policy")] == ["random", "flag --policy"]
    assert [part.strip() for part in row(out, "shared_state")] == ["in memory", "default"]
    assert capsys.readouterr().err == ""
