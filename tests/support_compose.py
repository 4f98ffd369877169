"""deploy/compose as processes of this machine: commands, environments and files of compose.yaml, with other addresses.

Names of services become 127.0.0.1 with a free port, paths inside a container those of the files that are mounted there.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support_dockerfile import DOCKERFILES, stages
from support_prometheus import wait_until
from support_services_processes import free_port, require_service
from support_source_tree import ROOT

COMPOSE = ROOT / "deploy" / "compose"
PROGRAMS = {"prom/prometheus": "prometheus", "prom/alertmanager": "prometheus-alertmanager"}
"""Programs of images whose command begins with an option."""

PORTS = {"nginx": 8080, "router": 8080, "redis": 6379, "redis-replica": 6379, "prometheus": 9090, "alertmanager": 9093}
"""Ports at which services listen; the others are replicas at 8000, or are not started."""


def interpolated(value: Any, environ: Mapping[str, str]) -> Any:
    """Replace ${NAME:-default} as Docker Compose does, and $$ by $."""
    if isinstance(value, dict):
        return {key: interpolated(each, environ) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, environ) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environ.get(match[1]) or match[2]

    return re.sub(r"\$\$|\$\{(\w+):-([^}]*)\}", replaced, value)


def read_compose(environ: Mapping[str, str] | None = None, name: str = "compose.yaml") -> dict[str, Any]:
    """Return a compose file with its variables replaced."""
    parsed = yaml.safe_load((COMPOSE / name).read_text("utf-8"))
    return dict(interpolated(parsed, environ or {}))


def is_chairlift(service: Mapping[str, Any]) -> bool:
    return service.get("image", "").startswith("chairlift:")


def environ_of(service: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a container of Chairlift: those of its image, and those of the service."""
    image = {name: value for name, value in stages(DOCKERFILES[0])[-1].environ.items() if name.startswith("CHAIRLIFT_")}
    return {**image, **service.get("environment", {})}


def mounts(compose: Mapping[str, Any], service: Mapping[str, Any]) -> dict[str, str]:
    """Return path in the container -> what is there: a path of the host, or the name of a volume."""
    found = {}
    for each in service.get("volumes", ()):
        source, target, *_ = each.split(":")
        found[target] = str((COMPOSE / source).resolve()) if source.startswith((".", "/")) else source
    for name in service.get("secrets", ()):
        found[f"/run/secrets/{name}"] = str(COMPOSE / compose["secrets"][name]["file"])
    return found


@dataclass
class ComposeProcesses:
    """Processes that run what a compose file says.

    Attributes:
        folder: where logs, volumes and changed files are.
        compose: the compose file.
        addresses: (name, port) in compose.yaml -> port of 127.0.0.1.
        rewrite: changes a mounted file's text once its addresses are replaced; gets its name and text.
        secrets: folder of the secrets.
        processes: the running processes.
    """

    folder: Path
    compose: dict[str, Any] = field(default_factory=read_compose)
    addresses: dict[tuple[str, int], int] = field(default_factory=dict)
    rewrite: Callable[[str, str], str] = lambda name, text: text
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.secrets = self.folder / "secrets"
        self._copies: set[Path] = set()
        subprocess.run([sys.executable, str(COMPOSE / "make_secrets.py"), str(self.secrets)], check=True)
        for name in self.compose["services"]:
            key = (name, PORTS.get(name, 4318 if name == "tempo" else 8000))
            self.addresses.setdefault(key, free_port())

    def port(self, name: str) -> int:
        return next(port for (known, _), port in self.addresses.items() if known == name)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port(name)}"

    def secret(self, name: str) -> str:
        return (self.secrets / name).read_text("utf-8").strip()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8", errors="replace")

    def with_addresses(self, text: str) -> str:
        """Replace NAME:PORT."""
        for (name, port), here in self.addresses.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}:{port}\b", f"127.0.0.1:{here}", text)
        return text

    def command(self, name: str) -> list[str]:
        """Return the command of a service on this machine."""
        service = self.compose["services"][name]
        own = PORTS.get(name, 8000)
        words = self._with_pairs([self.with_addresses(word) for word in service["command"]])
        paths = {
            target: self._mounted(name, target, source) for target, source in mounts(self.compose, service).items()
        }
        for target in sorted(paths, key=len, reverse=True):
            words = [re.sub(rf"(^|=){re.escape(target)}(?=/|$)", rf"\g<1>{paths[target]}", word) for word in words]
        port = str(self.port(name))
        if is_chairlift(service):
            return [sys.executable, "-m", "chairlift", *words]
        program = PROGRAMS.get(service["image"].partition(":")[0])
        if program is not None:
            return [require_service(program), *words, f"--web.listen-address=127.0.0.1:{port}"]
        words = [port if word == str(own) else word for word in words]
        bound = ["--bind", "127.0.0.1"] if words[0] == "redis-server" else []
        return [require_service(words[0]), *words[1:], *bound]

    def _with_pairs(self, words: list[str]) -> list[str]:
        """Replace a name and a port in two words, as in --replicaof redis 6379."""
        for at in range(1, len(words) - 1):
            if words[at - 1] == "--replicaof":
                words[at : at + 2] = ["127.0.0.1", str(self.addresses[words[at], int(words[at + 1])])]
        return words

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment of a service on this machine."""
        variables = environ_of(self.compose["services"][name])
        here = {"CHAIRLIFT_HOST": "127.0.0.1", "CHAIRLIFT_PORT": str(self.port(name))}
        return {key: self.with_addresses(value) for key, value in variables.items()} | here

    def _mounted(self, name: str, target: str, source: str) -> Path:
        """Return a path of this machine for a path in a container: a copy, with addresses replaced, or a new folder."""
        if target.startswith("/run/secrets/"):
            return self.secrets / Path(source).name
        to = self.folder / name / target.strip("/")
        if to in self._copies:
            return to
        self._copies.add(to)
        to.parent.mkdir(parents=True, exist_ok=True)
        if not source.startswith("/"):
            to.mkdir()
        elif Path(source).is_dir():
            shutil.copytree(source, to)
        elif Path(source).exists():
            shutil.copyfile(source, to)
        for file in [to] if to.is_file() else [each for each in to.rglob("*") if each.is_file()]:
            text = self.with_addresses(file.read_text("utf-8"))
            text = re.sub(r"listen (\d+)", f"listen 127.0.0.1:{self.port(name)}", text)
            text = text.replace("/tmp/", f"{self.folder / name}/")
            file.write_text(self.rewrite(file.name, text), "utf-8")
        return to

    def start(self, name: str, **environ: str) -> None:
        """Start a service without waiting for it; `environ` has more variables."""
        command = self.command(name)
        variables = {**os.environ, **(self.environ(name) if command[0] == sys.executable else {}), **environ}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=self.folder)

    def wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        """Wait until a service that was started is ready."""

        def is_over() -> bool:
            return is_ready() or self.processes[name].poll() is not None

        wait_until(is_over, lambda: f"{name} is not ready: {self.log(name)[-2000:]}")
        assert self.processes[name].poll() is None, f"{name} has ended: {self.log(name)[-2000:]}"

    def stop(self, name: str) -> int:
        """Stop a service by its own signal and return its exit code."""
        number = getattr(signal, self.compose["services"][name].get("stop_signal", "SIGTERM"))
        process = self.processes[name]
        process.send_signal(number)
        return process.wait(60)

    def end(self) -> None:
        """Kill what still runs; nginx gets a signal that it passes to its workers."""
        for name, process in self.processes.items():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM if name == "nginx" else signal.SIGKILL)
                process.wait(10)
