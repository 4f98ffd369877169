"""Proxy: a program between clients and replicas that is measured, with its version, configuration and process."""

import asyncio
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from router_overhead.client_connection import BadResponse, ClientConnection, request
from router_overhead.scripted_responses import MODEL
from server_process.free_port import free_port
from server_process.process_usage import ProcessTree
from server_process.server_process import ServerProcess

ROUTER = "chairlift"
CommandOf = Callable[[Path, int, Sequence[int]], list[str]]
"""Returns a command line for a folder of the proxy's own, its port and the replicas' ports."""

START_SECONDS = 120.0
"""Longest time from the start of a proxy until it passes a request on."""

STOP_SECONDS = 10.0
MAX_SHOWN_CHARS = 1000
LITELLM_ENVIRON = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}  # fmt: skip
"""LiteLLM uses the price list of its package, logs errors only, and asks for no key, like the other proxies here."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is installed.

    Attributes:
        name: its name in tables.
        version: its version, "?" if it does not say.
        command: returns its command line.
        environ: environment variables that it gets in addition.
    """

    name: str
    version: str
    command: CommandOf
    environ: Mapping[str, str] = field(default_factory=dict)


class ProxyProcess:
    """A running proxy."""

    def __init__(self, proxy: Proxy, folder: Path, replica_ports: Sequence[int], cpus: frozenset[int]) -> None:
        """Start it on these CPUs; `folder` gets its configuration and its output."""
        folder.mkdir(parents=True)
        self.proxy = proxy
        self.port = free_port()
        command = proxy.command(folder, self.port, replica_ports)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)  # a new process inherits it
        try:
            self._server = ServerProcess(command, folder / "output.log", environ=proxy.environ, folder=folder)
        finally:
            os.sched_setaffinity(0, before)
        self.tree = ProcessTree(self._server.pid)

    async def wait_until_ready(self) -> None:
        """Send requests until one is answered. Raises RuntimeError with the proxy's output if none is in time."""
        deadline, reason = time.monotonic() + START_SECONDS, ""
        while time.monotonic() < deadline and self._server.process.poll() is None:
            try:
                connection = await ClientConnection.open(self.port, lambda number, num_events: None)
                try:
                    await asyncio.wait_for(connection.send(0, request(0, 1, is_streamed=True)), 10.0)
                    return
                finally:
                    connection.close()
            except (OSError, BadResponse) as error:
                reason = str(error) or type(error).__name__
            await asyncio.sleep(0.2)
        output = self._server.log()[-MAX_SHOWN_CHARS:]
        raise RuntimeError(f"{self.proxy.name} does not pass a request on ({reason}); its output ends: {output}")

    def stop(self) -> None:
        """End the process and wait for it."""
        self._server.stop(STOP_SECONDS)


def find_proxies(litellm: str | None, sglang_router: str | None) -> tuple[list[Proxy], dict[str, str]]:
    """Return the proxies that are installed, and why each other one is left out."""
    found = [Proxy(ROUTER, importlib.metadata.version("chairlift"), router_command)]
    left_out: dict[str, str] = {}
    for name, command, pattern in (
        ("nginx", nginx_command, r"nginx/(\S+)"),
        ("haproxy", haproxy_command, r"version (\S+)"),
    ):
        program = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
        if program is None:
            left_out[name] = "it is not on PATH"
        else:
            found.append(Proxy(name, _version([program, "-v"], pattern), command(program)))
    if litellm is None or not Path(litellm).is_file():
        left_out["litellm"] = "--litellm names no program"
    else:
        python = str(Path(litellm).parent / "python")
        found.append(Proxy("litellm", _package_version(python, "litellm"), litellm_command(litellm), LITELLM_ENVIRON))
    if sglang_router is None or not Path(sglang_router).is_file():
        left_out["sglang-router"] = "--sglang-router names no Python interpreter"
    else:
        version = _package_version(sglang_router, "sglang-router")
        found.append(Proxy("sglang-router", version, sglang_router_command(sglang_router)))
    return found, left_out


def router_command(folder: Path, port: int, replica_ports: Sequence[int]) -> list[str]:
    """Return the command line of the router with its defaults."""
    replicas = [word for each in replica_ports for word in ("--replica", f"http://127.0.0.1:{each}")]
    return [sys.executable, "-m", "chairlift", "router", "--host", "127.0.0.1", "--port", str(port), *replicas]


def nginx_command(program: str) -> CommandOf:
    """Return the command line of nginx: one worker, connections to the replicas kept open, no buffering."""

    def command(folder: Path, port: int, replica_ports: Sequence[int]) -> list[str]:
        servers = "\n".join(f"    server 127.0.0.1:{each};" for each in replica_ports)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = "\n".join(f"  {each}_temp_path {folder / each};" for each in kinds)
        config = folder / "nginx.conf"
        config.write_text(
            f"""daemon off;
worker_processes 1;
pid {folder / "nginx.pid"};
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
{folders}
  keepalive_requests 1000000;
  upstream replicas {{
{servers}
    keepalive 256;
    keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
""",
            encoding="utf-8",
        )
        return [program, "-c", str(config), "-e", "stderr"]

    return command


def haproxy_command(program: str) -> CommandOf:
    """Return the command line of HAProxy: one thread, connections to the replicas reused, each chunk sent at once."""

    def command(folder: Path, port: int, replica_ports: Sequence[int]) -> list[str]:
        servers = "\n".join(f"  server r{at} 127.0.0.1:{each}" for at, each in enumerate(replica_ports))
        config = folder / "haproxy.cfg"
        config.write_text(
            f"""global
  nbthread 1
  maxconn 4096
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend clients
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance roundrobin
  http-reuse always
{servers}
""",
            encoding="utf-8",
        )
        return [program, "-db", "-f", str(config)]

    return command


def litellm_command(program: str) -> CommandOf:
    """Return the command line of LiteLLM's proxy: one worker, each replica a deployment of the model."""

    def command(folder: Path, port: int, replica_ports: Sequence[int]) -> list[str]:
        parameters = [
            {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{each}/v1", "api_key": "none"}
            for each in replica_ports
        ]
        deployments = [{"model_name": MODEL, "litellm_params": each} for each in parameters]
        config = folder / "config.yaml"
        config.write_text(json.dumps({"model_list": deployments}), encoding="utf-8")  # JSON is YAML
        return [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]

    return command


def sglang_router_command(python: str) -> CommandOf:
    """Return the command line of sglang-router with its defaults."""

    def command(folder: Path, port: int, replica_ports: Sequence[int]) -> list[str]:
        own_address = ["--host", "127.0.0.1", "--port", str(port)]
        metrics_address = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        urls = [f"http://127.0.0.1:{each}" for each in replica_ports]
        launch = [python, "-m", "sglang_router.launch_router", "--log-level", "error"]
        return [*launch, *own_address, *metrics_address, "--worker-urls", *urls]

    return command


def _version(command: list[str], pattern: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    match = re.search(pattern, done.stdout + done.stderr)
    return match[1] if match else "?"


def _package_version(python: str, package: str) -> str:
    code = f"import importlib.metadata as m; print('version', m.version({package!r}))"
    return _version([python, "-c", code], r"version (\S+)")
