"""SettingsReloader: applies the values of a valid file, and none of an invalid one."""

import logging
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.settings.load_settings_file import load_settings_file
from chairlift.cli.settings.reload import FIXED_ROUTER_SETTINGS, FIXED_SETTINGS, SettingsReloader
from chairlift.core.errors import ConfigError
from support_process import TIMEOUT_SECONDS
from support_server import real_server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "serve.yaml"
    file.write_text("tenant_requests_per_minute: 5\nmax_queue_wait: 9\nport: 81\n", encoding="utf-8")
    return file


def make_reloader(path: Path, *words: str, **environ: str) -> SettingsReloader:
    arguments = build_parser(["serve"]).parse_args(["serve", "--config", str(path), *words])
    load_settings_file(arguments, environ)
    return SettingsReloader.of_server(arguments, environ, ("m",), 2000)


def test_limits_and_log_level_come_from_the_new_file(path: Path) -> None:
    reload = make_reloader(path)
    assert reload().config.tenant.tenant_requests_per_minute == 5
    path.write_text("tenant_requests_per_minute: 7\nmax_waiting_tokens: 3\nlog_level: debug\n", encoding="utf-8")
    reloaded = reload()
    assert reloaded.config.tenant.tenant_requests_per_minute == 7
    assert (reloaded.config.admission.max_waiting_tokens, reloaded.config.admission.max_queue_wait) == (3, None)
    assert reloaded.log.level == logging.DEBUG


def test_flags_and_variables_win_as_before(path: Path) -> None:
    reload = make_reloader(path, "--tenant-requests-per-minute", "1", CHAIRLIFT_MAX_QUEUE_WAIT="2")
    path.write_text("tenant_requests_per_minute: 7\nmax_queue_wait: 8\ntenant_max_open_requests: 9\n", encoding="utf-8")
    config = reload().config
    assert (config.tenant.tenant_requests_per_minute, config.admission.max_queue_wait) == (1, 2.0)
    assert config.tenant.tenant_max_open_requests == 9


def test_a_longer_admission_queue_than_the_running_engine_has_room_for_is_rejected(path: Path) -> None:
    reload = make_reloader(path)
    path.write_text("max_waiting_requests: 2000\n", encoding="utf-8")
    assert reload().config.admission.max_waiting_requests == 2000
    path.write_text("max_waiting_requests: 2001\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"max_queue_size is 2000 sequences, less than max_waiting_requests \(2001\)"):
        reload()


def test_a_queue_size_of_the_file_is_checked_with_the_flags_of_the_start(path: Path) -> None:
    path.write_text("max_queue_size: 100\n", encoding="utf-8")
    assert make_reloader(path, "--max-waiting-requests", "50")().config.admission.max_waiting_requests == 50
    with pytest.raises(ConfigError, match=r"max_queue_size is 100 sequences, less than max_waiting_requests \(1024\)"):
        make_reloader(path)()


@pytest.mark.share(2)
@pytest.mark.parametrize("text", [
    "tenant_requests_per_minute: x\n", "prot: 1\n", "tenant_requests_per_minute: 0\n", "port: [\n",
    "log_backups: -1\n", "write_timeout: 0\n",
    "", "# nothing\n", "max_queue_wait: 1\nport: 99999\n", "tls_cert: a.pem\n", "max_batch_tokens: -5\n",
])  # fmt: skip
def test_an_invalid_file_is_rejected_and_a_valid_one_is_applied(path: Path, text: str) -> None:
    reload, good = make_reloader(path), path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        reload()
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        reload()
    path.write_text(good, encoding="utf-8")
    assert reload().config.tenant.tenant_requests_per_minute == 5


def test_a_pipe_is_rejected_without_a_wait(path: Path) -> None:
    reload = make_reloader(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a regular file, so it cannot be read again"):
        reload()


def test_changed_fixed_settings_are_named(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reload = make_reloader(path)
    path.write_text("tenant_requests_per_minute: 6\nport: 82\nmodel: other\nmax_queue_wait: 9\n", encoding="utf-8")
    reload()
    path.write_text("tenant_requests_per_minute: 6\nport: '81'\nmax_queue_wait: 1\n", encoding="utf-8")
    reload()
    message = f"{path}: the new values of model, port apply only after a restart"
    assert [record.getMessage() for record in caplog.records] == [message]
    assert "log_level" not in [setting.dest for setting in FIXED_SETTINGS]


def test_a_server_reads_its_limits_again_on_sighup(path: Path) -> None:
    path.write_text("model: chairlift:random\nnum_blocks: 64\ntenant_requests_per_minute: 1\n", encoding="utf-8")
    body = {"model": "chairlift:random", "prompt": "a", "max_tokens": 1}
    with real_server("--config", str(path)) as server:

        def status() -> int:
            return httpx.post(server.url + "/v1/completions", json=body, timeout=TIMEOUT_SECONDS).status_code

        def reload_until(words: str) -> None:
            until = time.monotonic() + TIMEOUT_SECONDS
            server.process.send_signal(signal.SIGHUP)
            while words not in server.log:
                assert time.monotonic() < until, server.log
                time.sleep(0.02)

        assert [status(), status()] == [200, 429]
        path.write_text("tenant_requests_per_minute: many\n", encoding="utf-8")
        reload_until("the old keys, certificates and limits stay")
        assert "line 1: tenant_requests_per_minute must be a number, got 'many'" in server.log
        assert status() == 429
        path.write_text("model: chairlift:random\nnum_blocks: 64\ntenant_requests_per_minute: 3\n", encoding="utf-8")
        reload_until("keys, certificates and limits were read again")
        assert [status(), status(), status()] == [200, 200, 429]
        assert server.stop() == 0


def router_reloader(path: Path, *words: str, **environ: str) -> SettingsReloader:
    arguments = build_parser(["router"]).parse_args(["router", "--config", str(path), *words])
    load_settings_file(arguments, environ)
    return SettingsReloader.of_router(arguments, environ)


def test_a_router_reads_its_limits_again_and_reports_what_needs_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("replica: [http://a]\ntenant_requests_per_minute: 5\n", encoding="utf-8")
    reload = router_reloader(path, "--max-queue-wait", "3")
    config = reload().config
    assert (config.tenant.tenant_requests_per_minute, config.admission.max_queue_wait) == (5, 3.0)
    assert not caplog.records
    path.write_text("replica: [http://b]\npolicy: random\ntenant_requests_per_minute: 6\n", encoding="utf-8")
    assert reload().config.tenant.tenant_requests_per_minute == 6
    assert "the new values of replica, policy apply only after a restart" in caplog.text


@pytest.mark.parametrize(
    "text", ["policy: best\n", "max_attempts: 0\n", "replica: [http://a/b]\n", "probe_timeout: x\n"]
)
def test_a_router_rejects_a_file_that_is_not_valid_as_a_whole(tmp_path: Path, text: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text("replica: [http://a]\n", encoding="utf-8")
    reload = router_reloader(path)
    path.write_text(f"tenant_requests_per_minute: 7\n{text}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"router\.yaml line 2: "):
        reload()


def test_a_fleet_reads_its_limits_again_and_reports_what_needs_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("max_replicas: 3\ntenant_requests_per_minute: 5\n", encoding="utf-8")
    arguments = build_parser(["fleet"]).parse_args(["fleet", "--config", str(path)])
    load_settings_file(arguments, {})
    reload = SettingsReloader.of_fleet(arguments, {})
    path.write_text("max_replicas: 4\ntarget_wait: 2\ntenant_requests_per_minute: 6\n", encoding="utf-8")
    assert reload().config.tenant.tenant_requests_per_minute == 6
    assert "the new values of max_replicas, target_wait apply only after a restart" in caplog.text
    path.write_text("max_replicas: 4\nmin_replicas: 5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"fleet\.yaml line 2: min_replicas must be at most"):
        reload()


def test_the_fixed_settings_of_a_router_are_its_own() -> None:
    names = {setting.name for setting in FIXED_ROUTER_SETTINGS}
    assert {"replica", "policy", "port", "shared_state"} <= names
    assert not names & {"tenant_requests_per_minute", "log_level", "num_blocks", "served_model_name"}
