"""deploy/docker: images without needless compilers, for a user without rights; their commands are the program's."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import chairlift
from chairlift.cli.command_line import build_parser, check_command
from support_certificates import CertificateAuthority
from support_dockerfile import DOCKER, DOCKERFILES, Stage, copies, is_sent, stages
from support_source_tree import ROOT

COMPILERS = re.compile(r"\b(g\+\+|gcc|clang|build-essential|cmake|make|rustc|cargo|golang|\w+-dev)\b")
READ_ONLY = {"/tmp", "/var/cache/chairlift"}

both = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


def final(path: Path) -> Stage:
    return stages(path)[-1]


@both
def test_the_compiler_of_the_kernels_is_in_the_build_stage_only(path: Path) -> None:
    build, last = stages(path)
    assert build.name == "build" and build.base == last.base
    assert "g++" in " ".join(build.all("RUN")) and "CHAIRLIFT_BUILD_KERNELS=required" in " ".join(build.all("RUN"))
    installed = " ".join(last.all("RUN"))
    if path.name == "Dockerfile.cuda":  # without a C compiler Triton raises at its first kernel
        packages = " && apt-get install -y --no-install-recommends gcc libc6-dev &&"
        assert packages in installed
        installed = installed.replace(packages, "").replace("apt-get update", "")
    assert not COMPILERS.search(installed) and "apt-get" not in installed
    assert [copied for copied in copies(last) if copied[0]] == [("build", ["/opt/chairlift"], "/opt/chairlift")]


@both
def test_the_user_is_a_number_without_rights_and_only_its_cache_is_writable(path: Path) -> None:
    last = final(path)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last.last("USER"))
    order = [name for name, _ in last.instructions]
    assert order.index("USER") > max(at for at, name in enumerate(order) if name in ("RUN", "COPY"))
    (volume,) = json.loads(last.last("VOLUME"))
    assert volume in READ_ONLY and f"install -d -o 10001 -g 10001 -m 0750 {volume}" in " ".join(last.all("RUN"))
    for name in ("HOME", "HF_HOME", "XDG_STATE_HOME"):
        assert last.environ[name].startswith(volume)
    assert last.environ["PYTHONDONTWRITEBYTECODE"] == "1" and last.last("WORKDIR") == volume


@both
def test_the_base_is_pinned_and_the_labels_name_the_version(path: Path) -> None:
    (image,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", path.read_text("utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert re.fullmatch(r"python:3\.11-slim-\w+", image) and project["requires-python"] == ">=3.11"
    last = final(path)
    assert last.labels["org.opencontainers.image.version"] == "${VERSION}"
    assert f"VERSION={chairlift.__version__}" in last.all("ARG")
    assert last.labels["org.opencontainers.image.licenses"] == project["license"]
    (extras,) = [each.partition('"')[2].rstrip('"') for each in stages(path)[0].all("ARG") if "EXTRAS" in each]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


@both
def test_signals_reach_the_server_and_its_command_is_one_of_the_program(path: Path) -> None:
    last = final(path)
    entry, command = json.loads(last.last("ENTRYPOINT")), json.loads(last.last("CMD"))
    assert entry == ["chairlift"] and last.last("STOPSIGNAL") == "SIGTERM"
    check_command(build_parser(), command)
    options = build_parser().parse_args(command)
    assert options.command == "serve"
    assert last.environ["CHAIRLIFT_HOST"] == "0.0.0.0" and last.environ["CHAIRLIFT_PORT"] == last.last("EXPOSE")


@both
def test_everything_that_is_copied_is_there_and_is_sent_to_the_builder(path: Path) -> None:
    for stage in stages(path):
        for origin, sources, _ in copies(stage):
            for source in sources if not origin else ():
                assert (ROOT / source).exists() and is_sent(ROOT / source), source


def test_nothing_else_is_sent() -> None:
    sent = [path for path in (ROOT / ".git", ROOT / "tests", ROOT / ".venv", ROOT / "deploy" / "compose" / "secrets")
            if is_sent(path)]  # fmt: skip
    assert sent == []
    assert not is_sent(ROOT / "src" / "chairlift" / "__pycache__") and not is_sent(ROOT / "src" / "chairlift" / "a.so")
    assert is_sent(ROOT / "src" / "chairlift" / "cli" / "main.py")


@pytest.mark.full
def test_what_is_copied_is_enough_to_build_the_wheel(tmp_path: Path) -> None:
    folder = tmp_path / "build"
    folder.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for _, sources, target in copies(stages(DOCKERFILES[0])[0]):
        for source in sources:
            to = folder / (target if target != "./" else source)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, ignore=ignore)
            else:
                shutil.copyfile(ROOT / source, to)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environ = {**os.environ, "CHAIRLIFT_BUILD_KERNELS": "none"}
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, timeout=120)
    assert list(tmp_path.glob("chairlift-*.whl"))


@both
def test_the_health_check_needs_no_shell_and_is_the_copied_script(path: Path) -> None:
    command = json.loads(final(path).last("HEALTHCHECK").partition(" CMD ")[2])
    targets = {target for _, _, target in copies(final(path))}
    assert command[0] == "python" and command[1] in targets and len(command) == 2


@pytest.mark.share(1)
@pytest.mark.parametrize(
    ("has_tls", "has_variable", "asks_for_certificate"),
    [(False, False, False), (False, True, False), (True, True, False), (True, False, False), (True, False, True)],
)
def test_the_health_check_follows_the_server(
    has_tls: bool, has_variable: bool, asks_for_certificate: bool, tmp_path: Path
) -> None:
    status = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not status[0]:
                return  # without an answer, as the server does to a client without its certificate
            self.send_response(status[0] if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    environ = {"CHAIRLIFT_PORT": str(server.server_address[1]), "http_proxy": "http://127.0.0.1:9"}
    authority = CertificateAuthority(tmp_path, "ca")
    certificate, key = authority.issue("server")
    if has_variable:
        environ["CHAIRLIFT_TLS_CERT"] = str(certificate)
    if has_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        if asks_for_certificate:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority.file)
        server.socket = context.wrap_socket(server.socket, server_side=True)

    def check() -> int:
        command = [sys.executable, "-S", str(DOCKER / "healthcheck.py")]
        return subprocess.run(command, env=environ, capture_output=True, timeout=20).returncode

    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    assert check() == 0
    status[0] = 503
    assert check() == (0 if asks_for_certificate else 1)
    status[0] = 0
    assert check() == (0 if has_tls else 1)
    server.shutdown()
    server.server_close()
    assert check() == 1
