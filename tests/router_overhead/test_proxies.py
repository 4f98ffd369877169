"""The proxies' command lines name every replica, and a proxy that cannot be measured is named as left out."""

import re
import sys
from pathlib import Path

import pytest

from router_overhead import proxies

PORTS = (8101, 8102)


@pytest.mark.parametrize(
    "command",
    [
        proxies.router_command, proxies.nginx_command("nginx"), proxies.haproxy_command("haproxy"),
        proxies.litellm_command("litellm"), proxies.sglang_router_command("python"),
    ],
)  # fmt: skip
def test_each_command_names_its_port_and_the_replicas(command: proxies.CommandOf, tmp_path: Path) -> None:
    words = command(tmp_path, 8000, PORTS)
    said = " ".join([*words, *(path.read_text() for path in tmp_path.iterdir())])
    assert {int(port) for port in re.findall(r"\b8\d{3}\b", said)} == {8000, *PORTS}


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(proxies.shutil, "which", lambda name, path: None)
    found, left_out = proxies.find_proxies(None, str(tmp_path / "python"))
    assert [each.name for each in found] == [proxies.ROUTER]
    assert {*left_out} == {"nginx", "haproxy", "litellm", "sglang-router"}


def test_a_version_is_what_the_program_prints() -> None:
    code = "import sys; print('nginx version: nginx/1.2.3', file=sys.stderr)"
    assert proxies._version([sys.executable, "-Sc", code], r"nginx/(\S+)") == "1.2.3"
    assert proxies._version([sys.executable, "-Sc", ""], r"nginx/(\S+)") == "?"
