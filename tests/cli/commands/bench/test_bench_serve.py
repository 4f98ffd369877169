"""`chairlift bench serve`: table, report, plot, invalid input, and the results after Ctrl-C."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.cli.settings import bench_settings
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.web.auth.api_keys import key_line
from support_forks import process_start
from support_process import child_environment, wait_until
from support_server import Server, fake_server

FAKE = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=2048, verify=False)
SMALL = ("--workload", "uniform", "--vocab-size", "128", "--pause", "0")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fake_server(FAKE) as running:
        yield running


def bench(url: str, *words: str) -> int:
    return main(["bench", "serve", "--url", url, *SMALL, *words])


def unused_url() -> str:
    """Return the URL of a port without a server."""
    with socket.create_server(("127.0.0.1", 0)) as socket_at_port:
        return f"http://127.0.0.1:{socket_at_port.getsockname()[1]}"


def test_a_table_a_report_and_a_plot(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    assert bench(server.url, "--rate", "50,100", "--duration", "0.5", "--slo", "ttft=30,e2e=60", *files) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["load", "50/s", "100/s"]
    assert err.splitlines() == [f"fake at {server.url}, workload uniform", "phase 1: 50/s", "phase 2: 100/s"]
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["complete"] and report["asked"]["slo"] == {"ttft": 30.0, "e2e": 60.0}
    assert all(phase["requests"]["good"] == phase["requests"]["total"] > 0 for phase in report["phases"])
    assert str(tmp_path) not in json.dumps(report)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.share(1)
@pytest.mark.parametrize("words", [["--chat"], ["--text"], ["--openai-fields-only"], ["--no-ignore-eos"]])
def test_every_request_format(server: Server, tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "out.json"
    assert bench(server.url, *words, "--concurrency", "4", "--requests", "8", "--json", str(path), "-q") == 0
    (phase,) = json.loads(path.read_text())["phases"]
    assert phase["requests"]["ok"] == 8 and phase["tokens"]["output"] > 0 and phase["ttft_seconds"]["p50"] > 0


@pytest.mark.full
def test_requests_that_exceed_their_timeout_are_counted(tmp_path: Path) -> None:
    slow = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.05, verify=False)
    path = tmp_path / "out.json"
    with fake_server(slow) as running:
        words = ["--concurrency", "2", "--requests", "4", "--request-timeout-ms", "1200", "--json", str(path)]
        assert bench(running.url, *words) == 1
    counts = json.loads(path.read_text())["phases"][0]["requests"]
    assert counts["ok"] == counts["non_terminal"] == 0 and counts["total"] == 4
    assert set(counts["by_code"]) <= {"timeout", "deadline_unreachable", "timeout_too_short"}


@pytest.mark.full
def test_the_key_comes_from_a_file_or_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, mine = tmp_path / "keys.txt", tmp_path / "mine.txt"
    keys.write_text(key_line("the-key", "me") + "\n")
    mine.write_text("the-key\n")
    words = ["--requests", "2", "--concurrency", "1", "-q"]
    with fake_server(FAKE, keys=str(keys)) as running:
        assert bench(running.url, *words) == 1
        assert "does not list its models" in capsys.readouterr().err
        assert bench(running.url, *words, "--api-key-file", str(mine)) == 0
        monkeypatch.setenv("CHAIRLIFT_API_KEY", "the-key")
        assert bench(running.url, *words) == 0


def test_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    url = unused_url()
    assert bench(url) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"chairlift: {url} does not respond: connection refused\n")


def test_an_unknown_model_is_reported_with_the_servers_message(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server.url, "--model", "other") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "the model 'other' is not served here; served are fake (404)" in err


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--url", "localhost:8000"],
            "--url must begin with http:// or https:// and name a host, got 'localhost:8000'",
        ),
        (["--rate", "x"], "--rate must be a number, got 'x'"),
        (["--rate", "0"], "each value of --rate must be a positive number, got 0"),
        (["--rate", "1", "--overload", "2"], "--rate cannot be given together with --concurrency or --overload"),
        (["--slo", "speed=1"], "--slo has no limit 'speed'; available are ttft, tpot, itl, e2e"),
        (["--slo", "ttft"], "--slo must be pairs of name and seconds such as ttft=0.5,tpot=0.05, got 'ttft'"),
        (["--chat", "--text"], "--chat and --text cannot be given together; --chat always sends text"),
        (["--vocab-size", "1"], "--vocab-size must be between 2 and 2147483647, got 1"),
        (["--request-timeout-ms", "0"], "--request-timeout-ms must be at least 1, got 0"),
        (["--workload", "nothing"], "unknown --workload 'nothing'"),
        (["--requests", "0"], "--requests must be at least 1, got 0"),
        (["--duration", "-1"], "--duration must be a positive number of seconds, got -1"),
        (["--arrivals", "never"], "--arrivals must be one of poisson, even, got 'never'"),
        (["--api-key-file", "/no/such"], "cannot read /no/such: No such file or directory"),
        (["--json", "/no/such/out.json"], "cannot write /no/such/out.json: there is no folder /no/such"),
        (["--tenants", "a=1"], "unknown option --tenants"),
    ],
)
def test_invalid_input_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert bench(unused_url(), *words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_a_key_file_without_a_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "key.txt"
    path.write_text("\nbehind the first line\n")
    assert bench(unused_url(), "--api-key-file", str(path)) == 2
    assert "has no API key in its first line" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_writes_the_results_until_then(server: Server, tmp_path: Path, number: int, code: int) -> None:
    path = tmp_path / "out.json"
    words = ["bench", "serve", "--url", server.url, *SMALL, "--rate", "50", "--duration", "50", "--json", str(path)]
    running = process_start(is_forked=True)(
        [sys.executable, "-m", "chairlift", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=child_environment(),
    )  # fmt: skip
    assert running.stderr is not None
    assert any(line.startswith("phase 1") for line in running.stderr)
    before = server.metric("output_tokens_total")
    wait_until(lambda: server.metric("output_tokens_total") > before + 44 * 60)
    os.kill(running.pid, number)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == code and "interrupted: these are the results until then" in out
    report = json.loads(path.read_text())
    (phase,) = report["phases"]
    assert not report["complete"] and not phase["complete"] and phase["requests"]["ok"] >= 1
    assert phase["requests"]["failed"] == 0


@pytest.mark.full
def test_the_limit_of_open_files_is_raised(server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert bench(server.url, "--concurrency", "1", "--requests", "1", "-q") == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_every_setting_has_its_own_flag() -> None:
    flags = [setting.flag for setting in bench_settings.LOAD_SETTINGS]
    assert len(set(flags)) == len(flags) and "--tenants" not in flags
