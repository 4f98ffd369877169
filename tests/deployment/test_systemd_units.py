"""deploy/systemd: units whose commands are those of the program, with the time to drain and without rights."""

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from chairlift.cli.command_line import build_parser, check_command
from support_source_tree import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
HARDENING = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "RestrictNamespaces": "yes", "SystemCallFilter": "@system-service",
}  # fmt: skip

every = pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)


def entries(path: Path) -> dict[str, list[str]]:
    found = defaultdict(list)
    for line in path.read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key].append(value)
    return dict(found)


@every
def test_the_command_is_one_of_the_program(path: Path) -> None:
    (line,) = entries(path)["ExecStart"]
    program, *words = shlex.split(line)
    assert program == "/opt/chairlift/bin/chairlift"
    check_command(build_parser(), words)
    options = build_parser().parse_args(words)
    assert options.config == f"/etc/chairlift/{options.command}.yaml"
    assert options.command == {"chairlift": "serve", "chairlift-router": "router"}[path.stem]


@every
def test_a_stop_drains_and_a_failure_starts_again(path: Path) -> None:
    unit = entries(path)
    (drain,) = re.findall(r"^drain_timeout: (\d+)$", (ROOT / "docs" / "deployment.md").read_text("utf-8"), re.MULTILINE)
    assert int(unit["TimeoutStopSec"][0]) >= int(drain) + 10
    assert unit["KillMode"] == ["mixed"] and "KillSignal" not in unit
    assert unit["Restart"] == ["on-failure"] and unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


@every
def test_the_service_has_no_rights(path: Path) -> None:
    unit = entries(path)
    assert {key: unit[key][0] for key in HARDENING} == HARDENING
    assert unit["User"] == unit["Group"] == ["chairlift"] and int(unit["LimitNOFILE"][0]) > 10_000


@every
def test_systemd_finds_nothing_wrong(path: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian's package systemd)")

    def verify(text: str) -> str:
        (tmp_path / path.name).write_text(text.replace("/opt/chairlift/bin/chairlift", "/bin/true"), "utf-8")
        command = [program, "verify", "--man=no", str(tmp_path / path.name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return "\n".join(line for line in done.stderr.splitlines() if path.name in line)

    text = path.read_text("utf-8")
    assert verify(text) == ""
    assert "'ProtectSytem'" in verify(text.replace("ProtectSystem", "ProtectSytem"))


@every
def test_no_rule_takes_a_gpu_away(path: Path) -> None:
    """ProtectClock allows one device, by which systemd before version 252 denies all others."""
    found = entries(path)
    assert not {"ProtectClock", "PrivateDevices", "DevicePolicy", "DeviceAllow"} & found.keys()
