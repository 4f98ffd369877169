"""Rereading: a server takes the limits of its file over again, all of them or none, and names what it cannot take."""

import logging
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.settings.reload import FIXED, SettingsReloader
from chairlift.cli.settings.sources import load_settings_file
from chairlift.core.errors import ConfigError
from support_process import PATIENCE
from support_server import real_server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "serve.yaml"
    found.write_text("tenant_requests_per_minute: 5\nmax_queue_wait: 9\nport: 81\n", encoding="utf-8")
    return found


def rereading(path: Path, *words: str, **environ: str) -> SettingsReloader:
    arguments = build_parser().parse_args(["serve", "--config", str(path), *words])
    load_settings_file(arguments, environ)
    return SettingsReloader(arguments, environ, ("m",))


def test_limits_and_levels_are_those_of_the_new_file(path: Path) -> None:
    read = rereading(path)
    assert read().config.tenant.tenant_requests_per_minute == 5
    path.write_text("tenant_requests_per_minute: 7\nmax_waiting_tokens: 3\nlog_level: debug\n", encoding="utf-8")
    renewed = read()
    assert renewed.config.tenant.tenant_requests_per_minute == 7 and renewed.config.served_names == ("m",)
    assert (renewed.config.admission.max_waiting_tokens, renewed.config.admission.max_queue_wait) == (3, 2.0)
    assert renewed.log.level == logging.DEBUG


def test_flags_and_variables_win_as_before(path: Path) -> None:
    read = rereading(path, "--tenant-requests-per-minute", "1", CHAIRLIFT_MAX_QUEUE_WAIT="2")
    path.write_text("tenant_requests_per_minute: 7\nmax_queue_wait: 8\ntenant_max_open_requests: 9\n", encoding="utf-8")
    config = read().config
    assert (config.tenant.tenant_requests_per_minute, config.admission.max_queue_wait) == (1, 2.0)
    assert config.tenant.tenant_max_open_requests == 9


@pytest.mark.parametrize("text", [
    "tenant_requests_per_minute: x\n", "prot: 1\n", "tenant_requests_per_minute: 0\n", "port: [\n",
    "log_backups: -1\n", "write_timeout: 0\n",
    "", "# nothing\n", "max_queue_wait: 1\nport: 99999\n", "tls_cert: a.pem\n", "max_batch_tokens: -5\n",
])  # fmt: skip
def test_a_bad_file_is_refused_and_a_good_one_is_taken_again(path: Path, text: str) -> None:
    read, good = rereading(path), path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        read()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read()
    path.write_text(good, encoding="utf-8")
    assert read().config.tenant.tenant_requests_per_minute == 5


def test_a_pipe_in_the_files_place_is_refused_instead_of_waited_for(path: Path) -> None:
    read = rereading(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is no file, and so cannot be read again"):
        read()


def test_what_holds_until_the_end_is_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read = rereading(path)
    path.write_text("tenant_requests_per_minute: 6\nport: 82\nmodel: other\nmax_queue_wait: 9\n", encoding="utf-8")
    read()
    path.write_text("tenant_requests_per_minute: 6\nport: '81'\nmax_queue_wait: 1\n", encoding="utf-8")
    read()
    said = f"{path}: what changed of model, port holds from the next start"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert "log_level" not in [setting.dest for setting in FIXED]


def test_a_server_reads_its_limits_again_on_sighup(path: Path) -> None:
    path.write_text("model: chairlift:random\nnum_blocks: 64\ntenant_requests_per_minute: 1\n", encoding="utf-8")
    body = {"model": "chairlift:random", "prompt": "a", "max_tokens": 1}
    with real_server("--config", str(path)) as server:

        def status() -> int:
            return httpx.post(server.url + "/v1/completions", json=body, timeout=PATIENCE).status_code

        def told(words: str) -> None:
            until = time.monotonic() + PATIENCE
            server.process.send_signal(signal.SIGHUP)
            while words not in server.said:
                assert time.monotonic() < until, server.said
                time.sleep(0.02)

        assert [status(), status()] == [200, 429]
        path.write_text("tenant_requests_per_minute: many\n", encoding="utf-8")
        told("the old keys, certificates and limits stay")
        assert "line 1: tenant_requests_per_minute must be a number, got 'many'" in server.said
        assert status() == 429
        path.write_text("model: chairlift:random\nnum_blocks: 64\ntenant_requests_per_minute: 3\n", encoding="utf-8")
        told("keys, certificates and limits were read again")
        assert [status(), status(), status()] == [200, 200, 429]
        assert server.stop() == 0
