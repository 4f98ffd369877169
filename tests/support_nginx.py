"""A real nginx with the files of deploy/nginx, as a user without rights: only addresses and folders are replaced."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support_prometheus import running
from support_services_processes import free_port, require_service
from support_source_tree import ROOT

NGINX = ROOT / "deploy" / "nginx"
ROUTERS_OF_COMPOSE = ROOT / "deploy" / "compose" / "nginx-routers.conf"
UNPRIVILEGED_ID = 65534
"""User and group of nginx in tests that run as root."""

PLAIN, TLS = "nginx.conf", "nginx-tls.conf"


@dataclass(frozen=True)
class NginxServer:
    """A running nginx.

    Attributes:
        url: its address without TLS.
        tls_url: its address with TLS; its port is free without nginx-tls.conf.
        folder: its folder.
    """

    url: str
    tls_url: str
    folder: Path

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The lines of the access log."""
        lines = (self.folder / "nginx.log").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    @property
    def messages(self) -> list[str]:
        """The lines of the error log."""
        lines = (self.folder / "nginx.log").read_text("utf-8").splitlines()
        return [line for line in lines if not line.startswith("{")]


def write_config(
    folder: Path, ports: tuple[int, int], routers: Sequence[str], tls: Sequence[Path] = ()
) -> None:  # fmt: skip
    """Copy the configuration; `ports` are without and with TLS, `routers` as in 127.0.0.1:8080, `tls` the PEM files."""
    servers = "\n".join(f"server {router};" for router in routers)
    for file in NGINX.glob("*.conf"):
        text = file.read_text("utf-8").replace("listen 8080", f"listen 127.0.0.1:{ports[0]}")
        text = text.replace("listen 8443", f"listen 127.0.0.1:{ports[1]}").replace("server router:8080;", servers)
        text = text.replace("$host:8443", f"$host:{ports[1]}")
        text = re.sub(r"/tmp\b", str(folder), text)
        for name, path in zip(("tls.crt", "tls.key"), tls, strict=False):
            (folder / name).write_bytes(path.read_bytes())
            text = text.replace(f"/etc/nginx/tls/{name}", str(folder / name))
        (folder / file.name).write_text(text, "utf-8")


def write_compose_routers(folder: Path, name: str, resolver: str) -> None:
    """Put the file of Compose in place of chairlift-routers.conf; `name` is as in router:8080, `resolver` a DNS."""
    text = ROUTERS_OF_COMPOSE.read_text("utf-8")
    for old, new in {" router:8080;": f" {name};", "127.0.0.11 valid=5s": f"{resolver} valid=1s"}.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "chairlift-routers.conf").write_text(text, "utf-8")


def unprivileged() -> dict[str, Any]:
    """Return how Popen starts a process without rights: as a user of its own, unless this one has none itself."""
    return {"user": UNPRIVILEGED_ID, "group": UNPRIVILEGED_ID, "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def unprivileged_folder() -> Iterator[Path]:
    """Make a folder of the user without rights; pytest's own folder is closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="chairlift-test-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
        yield folder
    finally:
        shutil.rmtree(folder)


def check_config(folder: Path, name: str) -> str:
    """Run `nginx -t` and return what it prints. Raises AssertionError if it finds an error."""
    command = [require_service("nginx"), "-t", "-q", "-c", str(folder / name)]
    log = writable_file(folder / "check.log")
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, timeout=20, **unprivileged()).returncode
    assert code == 0, log.read_text("utf-8")
    return log.read_text("utf-8")


def writable_file(path: Path) -> Path:
    """Make a file that nginx may open again by /dev/stdout, as a container's output can be."""
    path.touch()
    path.chmod(0o666)
    return path


@contextmanager
def nginx(routers: Sequence[str], tls: Sequence[Path] = (), resolver: str = "") -> Iterator[NginxServer]:
    """Run nginx in front of routers, and with TLS if there are PEM files of a certificate and its key.

    With a resolver, the address of a DNS, it looks up the only router's name again and again, as in Compose.
    """
    program, ports = require_service("nginx"), (free_port(), free_port())
    with unprivileged_folder() as folder:
        write_config(folder, ports, routers, tls)
        if resolver:
            write_compose_routers(folder, routers[0], resolver)
        log = writable_file(folder / "nginx.log")
        url, tls_url = f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}"
        command = [program, "-c", str(folder / (TLS if tls else PLAIN)), "-g", "daemon off;"]
        ready = f"{tls_url if tls else url}/nginx-health"
        with running(command, log, ready, signal.SIGTERM, **unprivileged()):
            yield NginxServer(url, tls_url, folder)
