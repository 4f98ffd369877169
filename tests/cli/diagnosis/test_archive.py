"""The archive has everything of a server and its replicas, the errors of parts that failed, and no secret."""

import asyncio
import json
import re
import stat
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from chairlift.cli.diagnosis.archive import default_name, write_archive
from chairlift.cli.diagnosis.diagnosis import Diagnosis
from chairlift.cli.diagnosis.server_reader import PARTS, Keys
from chairlift.cli.diagnosis.server_snapshot import Part
from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import FileNotWritten
from chairlift.router.endpoint import ReplicaKind
from support_diagnosis import ADMIN_KEY, KEYS, USER_KEY, VALID, diagnosed, live_replica, snapshot
from support_router import CHAT, HELLO, running_router
from support_server import run
from support_services import Gate, fake_service

PROMPT = "zebra crossing"


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file is not None}


def test_a_router_and_its_replica_are_in_the_archive_and_no_key_and_no_prompt(tmp_path: Path) -> None:
    gate = Gate()

    async def scenario() -> None:
        async with (
            live_replica(fake_service(hook=gate)) as live,
            running_router([live.url], keys=KEYS, kind=ReplicaKind.CHAIRLIFT, models=("fake",)) as running,
            httpx.AsyncClient(timeout=30) as client,
        ):
            body = {**HELLO, "model": "fake", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
            request = asyncio.create_task(
                client.post(live.url + CHAT, json=body, headers={"authorization": f"Bearer {USER_KEY}"})
            )
            await asyncio.to_thread(gate.reached.wait, 30)
            asyncio.get_running_loop().call_later(0.05, gate.opened.set)
            write_archive(await diagnosed(running.url), tmp_path / "dump.tar.gz", [VALID])
            assert (await request).status_code == 200
            port = live.url.rpartition(":")[2]
            files = read(tmp_path / "dump.tar.gz")
            names = [f"{name}.{'txt' if name == 'metrics' else 'json'}" for name in PARTS]
            folders = ("server", f"replicas/127.0.0.1_{port}")
            assert files.keys() == {"manifest.json", "doctor.json"} | {f"{each}/{n}" for each in folders for n in names}
            for secret in (PROMPT, USER_KEY, ADMIN_KEY):
                assert all(secret.encode() not in content for content in files.values())
            debug = [json.loads(files[f"{folder}/debug.json"]) for folder in folders]
            assert [each["service"] for each in debug] == ["router", "replica"]
            assert b"chairlift_steps_total" in files[f"{folders[1]}/metrics.txt"]
            manifest = json.loads(files["manifest.json"])
            assert manifest["servers"]["server"]["parts"]["debug"]["status"] == 200
            assert json.loads(files["doctor.json"])["url"] == running.url

    run(scenario())
    assert stat.S_IMODE((tmp_path / "dump.tar.gz").stat().st_mode) == 0o600


def made(*urls: str, **parts: Part) -> Diagnosis:
    """Return a diagnosis of servers that have answered, but for these parts."""
    healthy = snapshot()
    snapshots = [replace(healthy, parts={**healthy.parts, **parts})] * len(urls)
    return Diagnosis(url=urls[0], snapshots=tuple(snapshots), findings=())


def test_a_part_that_failed_is_there_with_its_error(tmp_path: Path) -> None:
    failed: dict[str, Any] = {
        "debug": Part(path="/admin/debug", error="no complete answer within 8 s"),
        "metrics": Part(path="/metrics", status=500, body=b"broken"),
    }
    write_archive(made("http://a", **failed), tmp_path / "dump.tar.gz", [])
    files = read(tmp_path / "dump.tar.gz")
    assert json.loads(files["server/debug.json"]) == {"error": "no complete answer within 8 s"}
    assert files["server/metrics.txt"] == b"broken"
    parts = json.loads(files["manifest.json"])["servers"]["server"]["parts"]
    assert (parts["debug"]["error"], parts["metrics"]["status"]) == ("no complete answer within 8 s", 500)


def test_replicas_at_equal_addresses_have_folders_of_their_own(tmp_path: Path) -> None:
    write_archive(made("http://a", "http://a", "http://a"), tmp_path / "dump.tar.gz", [])
    assert len([name for name in read(tmp_path / "dump.tar.gz") if name.endswith("debug.json")]) == 3


def test_a_key_that_a_server_repeats_is_hidden(tmp_path: Path) -> None:
    body = b'{"reason": "key-12345 and key-1"}'
    diagnosis = made("http://a", health=Part(path="/health", status=200, body=body))
    write_archive(diagnosis, tmp_path / "dump.tar.gz", [Keys(api="key-1", admin="key-12345")])
    assert json.loads(read(tmp_path / "dump.tar.gz")["server/health.json"]) == {"reason": "*** and ***"}


def test_an_archive_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "dump.tar.gz").mkdir()
    with pytest.raises(FileNotWritten, match=r"^cannot write .*dump\.tar\.gz: it is a folder$"):
        write_archive(made("http://a"), tmp_path / "dump.tar.gz", [], may_replace=True)
    with pytest.raises(ConfigError, match="exists"):  # written by another process since the check before
        write_archive(made("http://a"), tmp_path / "dump.tar.gz", [])
    assert [each.name for each in tmp_path.iterdir()] == ["dump.tar.gz"]


def test_the_default_name_has_the_address_and_the_time() -> None:
    assert re.fullmatch(r"chairlift-debug-10\.0\.0\.7-8000-\d{8}T\d{6}\.tar\.gz", default_name("http://10.0.0.7:8000"))
    assert "/" not in default_name("http://[::1]:80/x") and default_name("http://a").startswith("chairlift-debug-a-2")


def test_an_address_of_dots_stays_in_the_archive(tmp_path: Path) -> None:
    write_archive(made("http://..", "http://.:1"), tmp_path / "d.tar.gz", [])
    assert all(".." not in name.split("/") for name in read(tmp_path / "d.tar.gz"))


def test_a_link_in_a_shared_folder_is_not_followed_and_an_interrupt_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, path = tmp_path / "victim", tmp_path / "d.tar.gz"
    victim.write_text("precious")
    (tmp_path / "d.tar.gz.part").symlink_to(victim)
    write_archive(made("http://a"), path, [])
    assert victim.read_text() == "precious" and stat.S_IMODE(path.stat().st_mode) == 0o600 and not path.is_symlink()

    def interrupt(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_archive(made("http://a"), tmp_path / "other.tar.gz", [])
    assert {each.name for each in tmp_path.iterdir()} == {"victim", "d.tar.gz", "d.tar.gz.part"}
