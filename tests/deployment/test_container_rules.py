"""The rules of the image without Docker: a server that is process 1 of its own namespace, with a read-only root.

It has the user, the variables and the writable folders of the Dockerfile, and no capabilities.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support_dockerfile import DOCKER, DOCKERFILES, stages
from support_prometheus import wait_until
from support_server import CHAT, COMPLETIONS, HELLO, fake_server
from support_services_processes import free_port
from support_source_tree import ROOT

IMAGE = stages(DOCKERFILES[0])[-1]
CACHE = "/var/cache/chairlift"
HIDDEN = (Path("/root"), Path("/tmp"))
"""Folders that are empty in the namespace, but for what Python and the package need from them."""

BODY = {"model": "chairlift:demo", "prompt": "a", "max_tokens": 500, "stream": True, "ignore_eos": True, "n": 2}


def mount_script(command: list[str]) -> str:
    """Return the shell script that makes the namespace's mounts and becomes the server."""
    needed = sorted({ROOT, Path(sys.prefix), Path(sys.base_prefix)})
    lines = ["set -e", "mount --make-rprivate /", "mount -t tmpfs tmpfs /mnt"]
    kept = [(f"/mnt/{at}", path) for at, path in enumerate(needed) if any(map(path.is_relative_to, HIDDEN))]
    for source, path in kept:
        lines += [f"mkdir {source}", f"mount --bind {shlex.quote(str(path))} {source}"]
    lines += [f"mount -t tmpfs -o mode={'1777' if str(each) == '/tmp' else '755'} tmpfs {each}" for each in HIDDEN]
    for source, path in kept:
        quoted = shlex.quote(str(path))
        lines += [f"mkdir -p {quoted}", f"mount --bind {source} {quoted}", f"mount -o remount,bind,ro {quoted}"]
    user, group = IMAGE.last("USER").split(":")
    lines += [
        "mount -t tmpfs -o mode=755 tmpfs /var/cache", f"install -d -o {user} -g {group} {CACHE}",
        "mount -t proc proc /proc", "mount -o remount,bind,ro /", f"cd {CACHE}",
        f"exec setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs --bounding-set=-all "
        f"--inh-caps=-all {shlex.join(command)}",
    ]  # fmt: skip
    return "\n".join(lines)


@contextmanager
def contained(folder: Path, *words: str, port: int) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """Run a command of the program so; yields the id of the process and its parent."""
    environ = {**IMAGE.environ, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    environ["CHAIRLIFT_PORT"] = str(port)
    script = mount_script([sys.executable, "-m", "chairlift", *words])
    with (folder / "log").open("wb") as log:
        parent = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script], env=environ, stdout=log, stderr=log
        )
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    try:
        wait_until(lambda: parent.poll() is not None or bool(children.read_text()), lambda: "no process")
        command = [sys.executable, "-S", str(DOCKER / "healthcheck.py")]

        def is_over() -> bool:
            check = subprocess.run(command, env={**environ, "PYTHONPATH": ""}, capture_output=True)
            return parent.poll() is not None or check.returncode == 0

        wait_until(is_over, (folder / "log").read_text)
        assert parent.poll() is None, (folder / "log").read_text()
        yield int(children.read_text()), parent
    finally:
        for pid in children.read_text().split() if children.exists() else ():
            os.kill(int(pid), signal.SIGKILL)
        parent.wait(20)


@pytest.fixture
def _namespaces() -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode:
        pytest.skip("it needs a user that may make namespaces")


@pytest.mark.full
@pytest.mark.usefixtures("_namespaces")
def test_a_router_needs_no_more(tmp_path: Path) -> None:
    port = free_port()
    with fake_server() as replica:
        words = ("router", f"--replica={replica.url}", "--insecure")
        with contained(tmp_path, *words, port=port) as (pid, parent):
            response = httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=HELLO, timeout=30)
            assert response.status_code == 200, response.text
            os.kill(pid, signal.SIGTERM)
            assert parent.wait(60) == 0, (tmp_path / "log").read_text()


@pytest.mark.full
@pytest.mark.usefixtures("_namespaces")
def test_a_server_under_the_rules_of_the_image_drains_on_sigterm(tmp_path: Path) -> None:
    port, lines = free_port(), list[str]()
    has_begun = threading.Event()

    def read_stream() -> None:
        with httpx.stream("POST", f"http://127.0.0.1:{port}{COMPLETIONS}", json=BODY, timeout=60) as response:
            for line in response.iter_lines():
                lines.append(line)
                has_begun.set()

    with contained(tmp_path, "serve", "--insecure", port=port) as (pid, parent):
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        assert "\nUid:\t10001\t10001\t10001\t10001\n" in status and "\nCapBnd:\t0000000000000000\n" in status
        assert status.partition("NSpid:")[2].split("\n")[0].split()[-1] == "1"
        reader = threading.Thread(target=read_stream)
        reader.start()
        assert has_begun.wait(30)
        os.kill(pid, signal.SIGTERM)
        reader.join(60)
        assert "data: [DONE]" in lines and sum('"finish_reason":"length"' in line for line in lines) == BODY["n"]
        assert parent.wait(60) == 0, (tmp_path / "log").read_text()


def test_the_script_leaves_nothing_writable_but_what_the_image_says() -> None:
    script = mount_script(["program"])
    assert "mount -o remount,bind,ro /\n" in script and CACHE in IMAGE.last("VOLUME")
    assert script.index("remount,bind,ro /\n") < script.index("exec setpriv") < script.index("program")
