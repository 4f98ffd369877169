"""`chairlift config validate`: prints every problem of a file."""

from pathlib import Path

import pytest

from chairlift.cli.commands.config_validate import CHECKS, invalid_values
from chairlift.cli.main import main
from chairlift.cli.settings.config_file import read_config


def run_validate(capsys: pytest.CaptureFixture[str], folder: Path, text: str) -> tuple[int, list[str]]:
    """Validate text as a file; returns the exit code and the lines without the file's name."""
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    code = main(["config", "validate", str(path)])
    out, err = capsys.readouterr()
    assert err == ""
    return code, [line.removeprefix(str(path)) for line in out.splitlines()]


@pytest.mark.share(2)
@pytest.mark.parametrize(("text", "count"), [
    ("", "0 settings"), ("port: 8080\n", "1 setting"),
    ("model: owner/name\nkey_file: nowhere.txt\ntls_cert: a.pem\ntls_key: b.pem\n", "4 settings"),
    ("log_backups: 0\nlog_file_size: 0\n", "2 settings"), ("batching_policy: fifo\nsafety_margin: 0.3\n", "2 settings"),
    ("max_replicas: 3\ntarget_wait: 2\nreplica_option: [dtype=float32]\nreplica_ports: 8101-8109\n", "4 settings"),
    ("n: 2\nbest_of: 3\ntemperature: 1\n", "3 settings"), ("max_tokens: 5\nmin_tokens: 5\n", "2 settings"),
])  # fmt: skip
def test_a_valid_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, count: str) -> None:
    """The files and models that it names are not read."""
    assert run_validate(capsys, tmp_path, text) == (0, [f": valid, {count}"])


@pytest.mark.full
def test_problems_of_a_fleet_are_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "min_replicas: 5\nmax_replicas: 2\ntarget_wait: 0\nreplica_option: [dtyp=x]\nreplica_ports: all\n"
    assert run_validate(capsys, tmp_path, text) == (1, [
        " line 1: min_replicas must be at most max_replicas (2), got 5",
        " line 3: target_wait must be above 0, got 0",
        " line 4: replica_option: `serve` has no option --dtyp",
        " line 5: replica_ports 'all' must be FIRST-LAST, as in 8101-8199",
    ])  # fmt: skip


def test_every_problem_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        "port: 70000\nprot: 1\nwrite_timeout: 0\nbody_timeout: -1\nhost: [a]\n"
        "scheduling_policy: no\nmax_batch_tokens: 0\n"
        "temperature: 9\ntop_p: 5\nlog_backups: 0\ntenant_max_open_requests: 0\nmax_queue_wait: -3\n"
        "tenant_weights: {a: -1}\nport: 6\n"
    )
    code, problems = run_validate(capsys, tmp_path, text)
    assert code == 1
    assert problems == [
        " line 1: port must be between 0 and 65535, got 70000",
        " line 2: unknown key 'prot'; did you mean 'port'?",
        " line 3: write_timeout must be a positive number of seconds, got 0",
        " line 4: body_timeout must be a positive number of seconds, got -1",
        " line 5: host must be text, got a list [a]",
        " line 6: unknown scheduling_policy 'no'; available are cache_aware, fair, fifo, priority",
        " line 7: max_batch_tokens must be at least 1, got 0",
        " line 8: temperature must be between 0 and 2, got 9.0",
        " line 9: top_p must be between 0 and 1, got 5.0",
        " line 10: a log file of limited size needs at least one backup; a size of 0 lets it grow",
        " line 11: tenant_max_open_requests must be a positive number, got 0",
        " line 12: max_queue_wait must be at least 0, got -3.0",
        " line 13: tenant_weights['a'] must be a positive number, got -1.0",
        " line 14: the key 'port' is already in line 1; remove one of them",
    ]


@pytest.mark.share(3)
@pytest.mark.parametrize(("text", "message"), [
    ("tls_key: a.pem\n", " line 1: tls_key needs tls_cert, too"),
    ("tls_cert: a.pem\n", " line 1: tls_cert needs tls_key, too"),
    ("port: 5\nsafety_margin: 0.5\n", " line 2: safety_margin needs batching_policy 'fifo'"),
    ("port: 5\nmax_queue_size: 9\n", " line 2: max_queue_size is 9 sequences, less than max_waiting_requests (1024)"),
    ("max_queue_size: 100\nmax_waiting_requests: 101\n", " line 1: max_queue_size is 100 sequences, less than"),
    ("served_model_name: ['']\n", " line 1: served_model_name must not be empty, got ''"),
    ("port: [\n", " line 2: the file is not valid YAML"),
])  # fmt: skip
def test_values_that_are_not_valid_together(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str
) -> None:
    code, (problems,) = run_validate(capsys, tmp_path, text)
    assert code == 1 and problems.startswith(message)


def test_a_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "validate", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().out == f"{tmp_path / 'none'}: the file cannot be read: No such file or directory\n"


def test_without_a_path_the_variable_names_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAIRLIFT_CONFIG", raising=False)
    assert main(["config", "validate"]) == 2
    assert "no settings file is named; give FILE.yaml or set CHAIRLIFT_CONFIG" in capsys.readouterr().err
    (tmp_path / "a.yaml").write_text("log_level: loud\n", encoding="utf-8")
    monkeypatch.setenv("CHAIRLIFT_CONFIG", str(tmp_path / "a.yaml"))
    assert main(["config", "validate"]) == 1
    assert "line 1: log_level must be one of" in capsys.readouterr().out


@pytest.mark.full
def test_an_error_that_names_no_setting_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.core.errors import ConfigError

    def reject(values: dict[str, object]) -> None:
        if values:
            raise ConfigError("not valid together")

    monkeypatch.setitem(CHECKS, "server", reject)  # type: ignore[arg-type]
    (tmp_path / "a.yaml").write_text("port: 5\nhost: b\n", encoding="utf-8")
    problems = list(invalid_values(read_config(str(tmp_path / "a.yaml"))))
    assert [(problem.line, problem.message) for problem in problems] == [(0, "not valid together")]


def test_every_problem_of_router_settings_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        "replica: ['http://a/b']\npolicy: best\nmodel_route: [x]\nmax_attempts: 0\nprobe_interval: 0\n"
        "shared_state: foo\nreplica_tls_cert: a.pem\nempty_grace: -1\ndiscovery: ['etcd://']\nhedging: maybe\n"
    )
    code, problems = run_validate(capsys, tmp_path, text)
    assert code == 1
    assert [problem.partition(":")[0].strip() for problem in problems] == [f"line {line}" for line in range(1, 11)]
    assert problems[0].endswith("a replica's URL looks like http://10.0.0.7:8000")
    assert problems[4] == " line 5: probe_interval must be a number of seconds above 0, got 0"


def test_a_valid_file_of_a_router_whose_files_are_not_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = "discovery: ['file:nowhere.yaml', 'kubernetes://a/b']\nreplica_key_file: nowhere\nport: 8000\n"
    assert run_validate(capsys, tmp_path, text) == (0, [": valid, 3 settings"])
