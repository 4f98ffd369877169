"""`chairlift config validate`: a good file is good, and of a bad one everything that is wrong is told at once."""

from pathlib import Path

import pytest

from chairlift.cli.commands.config_validate import CHECKS, invalid_values
from chairlift.cli.main import main
from chairlift.cli.settings.config_file import read_config


def validated(capsys: pytest.CaptureFixture[str], folder: Path, text: str) -> tuple[int, list[str]]:
    """Validate text as a file; returns the exit code, and what is said without the file's name."""
    path = folder / "serve.yaml"
    path.write_text(text, encoding="utf-8")
    code = main(["config", "validate", str(path)])
    out, err = capsys.readouterr()
    assert err == ""
    return code, [line.removeprefix(str(path)) for line in out.splitlines()]


@pytest.mark.parametrize(("text", "count"), [
    ("", "0 settings"), ("port: 8080\n", "1 setting"),
    ("model: owner/name\nkey_file: nowhere.txt\ntls_cert: a.pem\ntls_key: b.pem\n", "4 settings"),
    ("log_backups: 0\nlog_file_size: 0\n", "2 settings"), ("batching_policy: fifo\nsafety_margin: 0.3\n", "2 settings"),
    ("n: 2\nbest_of: 3\ntemperature: 1\n", "3 settings"), ("max_tokens: 5\nmin_tokens: 5\n", "2 settings"),
])  # fmt: skip
def test_a_good_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, count: str) -> None:
    """Files and models that it names are not looked at; what is good only together is good."""
    assert validated(capsys, tmp_path, text) == (0, [f": good, {count}"])


def test_everything_that_is_wrong_is_told_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        "port: 70000\nprot: 1\nwrite_timeout: 0\nbody_timeout: -1\nhost: [a]\n"
        "scheduling_policy: no\nmax_batch_tokens: 0\n"
        "temperature: 9\ntop_p: 5\nlog_backups: 0\ntenant_max_open_requests: 0\nmax_queue_wait: -3\n"
        "tenant_weights: {a: -1}\nport: 6\n"
    )
    code, told = validated(capsys, tmp_path, text)
    assert code == 1
    assert told == [
        " line 1: port must be between 0 and 65535, got 70000",
        " line 2: unknown key 'prot', did you mean 'port'?",
        " line 3: write_timeout must be a positive number of seconds, got 0",
        " line 4: body_timeout must be a positive number of seconds, got -1",
        " line 5: host must be text, got a list [a]",
        " line 6: unknown scheduling_policy 'no'; there is cache_aware, fair, fifo, priority",
        " line 7: max_batch_tokens must be at least 1, got 0",
        " line 8: temperature must be between 0 and 2, got 9.0",
        " line 9: top_p must be greater than 0 and at most 1, got 5.0",
        " line 10: a log file of limited size needs at least one backup; a size of 0 lets it grow",
        " line 11: tenant_max_open_requests must be a positive number, got 0",
        " line 12: max_queue_wait must be at least 0, got -3.0",
        " line 13: tenant_weights['a'] must be a positive number, got -1.0",
        " line 14: 'port' is already in line 1; one of them has to go",
    ]


@pytest.mark.parametrize(("text", "said"), [
    ("tls_key: a.pem\n", ": --tls-cert and --tls-key go together"),
    ("tls_cert: a.pem\n", " line 1: --tls-cert and --tls-key go together"),
    ("port: 5\nsafety_margin: 0.5\n", " line 2: safety_margin belongs to batching_policy 'fifo'"),
    ("served_model_name: ['']\n", " line 1: a served model needs a name"),
    ("port: [\n", " line 2: is no YAML"),
])  # fmt: skip
def test_what_is_wrong_with_each_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    code, (told,) = validated(capsys, tmp_path, text)
    assert code == 1 and told.startswith(said)


def test_a_file_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "validate", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().out == f"{tmp_path / 'none'}: cannot be read: No such file or directory\n"


def test_without_a_name_it_is_the_environments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAIRLIFT_CONFIG", raising=False)
    assert main(["config", "validate"]) == 2
    assert "which file?" in capsys.readouterr().err
    (tmp_path / "a.yaml").write_text("log_level: loud\n", encoding="utf-8")
    monkeypatch.setenv("CHAIRLIFT_CONFIG", str(tmp_path / "a.yaml"))
    assert main(["config", "validate"]) == 1
    assert "line 1: log_level must be one of" in capsys.readouterr().out


def test_an_error_that_names_no_setting_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chairlift.core.errors import ConfigError

    def refuse(asked: dict[str, object]) -> None:
        if asked:
            raise ConfigError("together they cannot be")

    monkeypatch.setitem(CHECKS, "server", refuse)  # type: ignore[arg-type]
    (tmp_path / "a.yaml").write_text("port: 5\nhost: b\n", encoding="utf-8")
    found = list(invalid_values(read_config(str(tmp_path / "a.yaml"))))
    assert [(problem.line, problem.said) for problem in found] == [(0, "together they cannot be")]
