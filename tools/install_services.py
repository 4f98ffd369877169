"""Install the programs that tests start (etcd, Redis, nginx, qemu, ...), if this is Debian and the user is root.

Without them the tests that need them are skipped, with the reason; with CHAIRLIFT_REQUIRE_SERVICES=1 they fail.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

PACKAGES = {
    "etcd": "etcd-server",
    "redis-server": "redis-server",
    "redis-sentinel": "redis-sentinel",
    "dnsmasq": "dnsmasq-base",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "nginx": "nginx",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
}
"""The programs that tests need, and Debian's packages that have them."""

NAMED_PACKAGES = {"chromium": "chromium"}
"""Programs that are large, and are installed only if they are named."""

TIMEOUT_SECONDS = 300.0
"""Seconds that each command may take, so that a mirror that does not answer cannot stop the tests."""

PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
"""Where programs are looked for: servers are not always in PATH."""


def find_program(program: str) -> str | None:
    """Return the path of a program, None if it is not installed."""
    return shutil.which(program, path=PLACES)


def main(named: Sequence[str] = ()) -> int:
    """Install what is missing of PACKAGES, or of the named programs; return 0 also where that is not possible."""
    wanted = {name: NAMED_PACKAGES[name] for name in named} or PACKAGES
    missing = list(dict.fromkeys(package for program, package in wanted.items() if find_program(program) is None))
    if not missing:
        return 0
    names = " ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.stderr.write(f"the tests that need these are skipped, unless you install them: {names}\n")
        return 0
    sys.stderr.write(f"installing programs for the tests: {names}\n")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # installs, and starts none of them
    limits = ["-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30", "-o", "Acquire::Retries=1"]
    for command in (["update", "-qq"], ["install", "-y", "-qq", *missing]):
        try:
            subprocess.run(
                ["apt-get", *limits, *command], env=environ, capture_output=True, text=True, check=True,
                timeout=TIMEOUT_SECONDS,
            )  # fmt: skip
        except (subprocess.SubprocessError, OSError) as error:
            reason = getattr(error, "stderr", None) or error
            sys.stderr.write(f"apt-get {command[0]} failed: {str(reason).strip()[-500:]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
