"""debug_dump.py: one archive, a line that says what it has, and exit code 1 for a server that does not answer."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.cli.main import main
from support_fleet_server import FleetServer, open_fleet_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetServer]:
    for name in ("CHAIRLIFT_API_KEY", "CHAIRLIFT_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with open_fleet_server() as server:
        server.routes = {"/livez": {}, "/readyz": {"state": "ready"}, "/load": {"state": "ready"}, "/metrics": "x 1\n"}
        yield server


def dump(server: FleetServer, *options: str) -> int:
    return main(["debug-dump", "--url", server.url, "--interval", "0.1", *options])


def test_the_archive_is_written_and_named(
    server: FleetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dump(server) == 0
    (path,) = tmp_path.iterdir()
    assert path.name in (text := capsys.readouterr().err) and "the server" in text
    with tarfile.open(path) as archive:
        assert any(name.endswith("/server/metrics.txt") for name in archive.getnames())


def test_a_server_that_is_down_is_written_too(
    server: FleetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.stop()
    assert dump(server, "--output", str(tmp_path / "d.tar.gz")) == 1
    assert "the server does not answer" in capsys.readouterr().err
    with tarfile.open(tmp_path / "d.tar.gz") as archive:
        file = archive.extractfile("d/doctor.json")
        assert file is not None and json.load(file)["problems"][0]["check"] == "unreachable"


def test_a_folder_that_is_missing_is_an_error_before_anything_is_read(
    server: FleetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dump(server, "--output", str(tmp_path / "no" / "d.tar.gz")) == 2
    assert "d.tar.gz: there is no folder" in capsys.readouterr().err and server.num_requests == 0


def test_an_existing_file_is_kept_without_force(
    server: FleetServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    assert dump(server, "--output", str(path)) == 2
    assert f"{path} exists; --force replaces it" in capsys.readouterr().err
    assert path.read_text() == "precious" and server.num_requests == 0
    assert dump(server, "--output", str(path), "--force") == 0 and tarfile.is_tarfile(path)


def test_the_archive_is_not_written_to_standard_output(
    server: FleetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dump(server, "--output", "-") == 2
    assert "not written to standard output" in capsys.readouterr().err
    assert server.num_requests == 0 and not list(tmp_path.iterdir())


def test_half_a_surrogate_pair_of_a_server_is_written(server: FleetServer, tmp_path: Path) -> None:
    server.routes["/admin/debug"] = {
        "service": "replica",
        "version": "\ud83d",
        "engine": {"integrity_errors": ["\ud83d"]},
    }
    assert dump(server, "--output", str(tmp_path / "d.tar.gz")) == 0
    with tarfile.open(tmp_path / "d.tar.gz") as archive:
        file = archive.extractfile("d/doctor.json")
        assert file is not None and json.load(file)["version"] == "\ud83d"
