"""`doctor --url` and `debug-dump` against real processes whose faults are caused: stopped, killed, empty, denied."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.engine.runner.fake_model import FakeConfig
from support_certificates import CertificateAuthority
from support_router_process import router_server
from support_server import ADMIN_KEY, COMPLETIONS, Server, fake_server

pytestmark = pytest.mark.full

SLOW = FakeConfig(vocab_size=128, max_model_len=512, num_blocks=512, seconds_per_step=0.05)


def run_command(*words: str, admin_key: str = ADMIN_KEY) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chairlift", *words]
    environ = {**os.environ, "CHAIRLIFT_ADMIN_KEY": admin_key, "CHAIRLIFT_API_KEY": ""}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def doctor(server: Server, *words: str, admin_key: str = ADMIN_KEY) -> Mapping[str, Any]:
    done = run_command("doctor", "--url", server.url, "--interval", "0.3", "--json", *words, admin_key=admin_key)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), done.stderr
    return report


def test_a_server_that_asks_for_certificates_is_read_with_one(tmp_path: Path) -> None:
    authority, other = CertificateAuthority(tmp_path, "ca"), CertificateAuthority(tmp_path, "other")
    certificate, key = authority.issue("server", days=90)
    tls = {"certificate": str(certificate), "key": str(key), "client_ca": str(authority.file)}
    known = ["--tls-ca", str(authority.file)]
    mine, foreign = (
        ["--tls-client-cert", str(cert), "--tls-client-key", str(secret)]
        for cert, secret in (authority.issue("client"), other.issue("stranger"))
    )
    with fake_server(SLOW, admin=True, tls=tls) as server:
        assert doctor(server, *known, *mine)["problems"] == []
        assert checks(doctor(server, *mine)) == {"untrusted"}
        assert checks(doctor(server, *known)) == checks(doctor(server, *known, *foreign)) == {"client_certificate"}
        done = run_command("top", "--url", server.url, "--once", "--json", "--interval", "0.1", *known, *mine)
        assert done.returncode == 0 and json.loads(done.stdout)["service"] == "replica", done.stderr


def checks(report: Mapping[str, Any]) -> set[str]:
    return {each["check"] for each in report["problems"]}


def test_a_stopped_engine_a_stopped_server_and_a_wrong_key_are_found(tmp_path: Path) -> None:
    with fake_server(SLOW, admin=True, watch={"heartbeat_timeout": 60.0}) as server:
        body = {"model": "fake", "prompt": "a zebra crossing", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + COMPLETIONS, json=body, timeout=30) as response:
            lines = response.iter_lines()  # its end would close the stream
            next(lines)
            report = doctor(server)
            assert report["ok"] and report["problems"] == []
            assert checks(doctor(server, admin_key="wrong")) == {"admin_key"}
            os.kill(server.engine_pid, signal.SIGSTOP)
            try:
                report = doctor(server)
                assert "hang" in checks(report) and not report["ok"]
                path = tmp_path / "dump.tar.gz"
                done = run_command("debug-dump", "--url", server.url, "--interval", "0.3", "--output", str(path))
                assert done.returncode == 0, done.stderr
            finally:
                os.kill(server.engine_pid, signal.SIGCONT)
        with tarfile.open(path) as archive:
            files = {entry.name: archive.extractfile(entry) for entry in archive}
            contents = {name: file.read() for name, file in files.items() if file is not None}
        assert "did not answer" in json.loads(contents["dump/server/debug.json"])["engine"]["error"]
        assert not any(b"zebra" in each or ADMIN_KEY.encode() in each for each in contents.values())
        server.process.send_signal(signal.SIGSTOP)
        try:
            report = doctor(server)
            assert checks(report) == {"unreachable"} and "no complete answer" in report["problems"][0]["what"]
        finally:
            server.process.send_signal(signal.SIGCONT)


def test_a_killed_replica_and_an_empty_source_are_found_through_the_router(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("replicas: []\n")
    options = ("--probe-interval", "0.2", "--discovery", f"file:{tmp_path / 'empty.yaml'}")
    with (
        fake_server(admin=True) as first, fake_server(admin=True) as second,
        router_server(first, second, options=options, CHAIRLIFT_ADMIN_KEY=ADMIN_KEY) as router,
    ):  # fmt: skip
        report = doctor(router)
        assert report["ok"] and checks(report) == {"source_empty"} and len(report["replicas"]) == 2
        first.stop(signal.SIGKILL)
        for _ in range(30):
            report = doctor(router)
            if "replica_state" in checks(report):
                break
        assert checks(report) == {"source_empty", "replica_state", "replica_not_read"} and report["ok"]
        second.stop(signal.SIGKILL)
        for _ in range(30):
            report = doctor(router)
            if {"no_replica", "not_ready"} <= checks(report):
                break
        assert {"no_replica", "not_ready"} <= checks(report) and not report["ok"]
