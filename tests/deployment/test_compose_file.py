"""deploy/compose/compose.yaml: hardened containers, no password in it, and commands and files that exist."""

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chairlift.cli.command_line import build_parser, check_command
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.auth.principal import ADMIN, USER
from support_compose import COMPOSE, environ_of, is_chairlift, mounts, read_compose
from support_dockerfile import DOCKERFILES, stages
from support_monitoring import PROMETHEUS_FOLDER
from support_source_tree import ROOT

FILE = read_compose()
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
CHAIRLIFT = [name for name, each in SERVICES.items() if is_chairlift(each)]
REPLICAS = ["replica-1", "replica-2", "replica-3"]

every = pytest.mark.parametrize("name", SERVICES)


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()  # type: ignore[union-attr]
    return float(number) * {"s": 1, "m": 60}[unit]


def option(name: str, flag: str) -> str:
    (value,) = [word.partition("=")[2] for word in SERVICES[name]["command"] if word.startswith(f"{flag}=")]
    return str(value)


def test_the_parts_of_the_fleet_are_there() -> None:
    assert set(SERVICES) == {
        "nginx", "router", *REPLICAS, "redis", "redis-replica", "prometheus", "alertmanager", "grafana", "tempo",
    }  # fmt: skip
    assert [name for name in CHAIRLIFT if name != "router"] == REPLICAS


@every
def test_a_container_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"] and not service.keys() & {"privileged", "cap_add"}
    user = stages(DOCKERFILES[0])[-1].last("USER") if is_chairlift(service) else service["user"]
    assert re.fullmatch(r"[1-9]\d*:\d+", user)
    limits = service["deploy"]["resources"]["limits"]
    assert limits.keys() == {"cpus", "memory", "pids"} and re.fullmatch(r"\d+[MG]", limits["memory"])
    assert re.fullmatch(r"[\w/-]+:v?\d[\w.-]+|chairlift:0\.1\.0", service["image"])
    assert service["restart"] == "unless-stopped" and service["init"] is True


@every
def test_health_is_checked_and_what_is_waited_for_has_a_check(name: str) -> None:
    service = SERVICES[name]
    if name == "tempo":
        assert "healthcheck" not in service  # its image has no program that could ask
    else:
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    for needed, how in service.get("depends_on", {}).items():
        assert how["condition"] == "service_healthy" and "healthcheck" in SERVICES[needed]


@every
def test_every_mounted_file_is_there(name: str) -> None:
    for target, source in mounts(FILE, SERVICES[name]).items():
        if source.startswith("/") and not target.startswith("/run/secrets/") and target != "/models":
            assert Path(source).exists(), source
        elif not source.startswith("/"):
            assert source in FILE["volumes"]
    assert set(SERVICES[name]["networks"]) <= FILE["networks"].keys()


@pytest.mark.parametrize("name", CHAIRLIFT)
def test_commands_and_variables_are_those_of_the_program(name: str) -> None:
    command, parser = SERVICES[name]["command"], build_parser()
    check_command(parser, command)
    options = parser.parse_args(command)
    assert options.command == ("router" if name == "router" else "serve")
    settings = (ROOT / "docs" / "settings.md").read_text("utf-8")
    for variable in environ_of(SERVICES[name]):
        assert f"`{variable}`" in settings
    assert SERVICES[name]["healthcheck"]["test"] == ["CMD", "python", "/opt/chairlift/healthcheck.py"]
    assert option(name, "--key-file").removeprefix("/run/secrets/") in SERVICES[name]["secrets"]


@pytest.mark.parametrize("name", CHAIRLIFT)
def test_a_stop_leaves_the_time_to_drain(name: str) -> None:
    assert seconds(SERVICES[name]["stop_grace_period"]) >= float(option(name, "--drain-timeout")) + 10
    assert seconds(SERVICES["nginx"]["stop_grace_period"]) >= seconds(SERVICES["router"]["stop_grace_period"])
    assert SERVICES["nginx"]["stop_signal"] == "SIGQUIT"


def test_only_nginx_is_reached_from_other_machines() -> None:
    ports = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert ports.pop("nginx") == ["0.0.0.0:8080:8080"]
    assert all(port.startswith("127.0.0.1:") for each in ports.values() for port in each)
    assert FILE["networks"]["backend"] == {"internal": True}
    assert all("edge" not in SERVICES[name]["networks"] for name in [*REPLICAS, "redis", "redis-replica", "tempo"])


def test_no_password_is_in_the_file_and_every_secret_is_made(tmp_path: Path) -> None:
    text = (COMPOSE / "compose.yaml").read_text("utf-8")
    assert not re.search(r"(?i)password\s*[:=]\s*['\"]?(?!/run/secrets/)[a-z0-9]+['\"]?\s*$", text, re.MULTILINE)
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o755)
    command = [sys.executable, str(COMPOSE / "make_secrets.py"), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name, each in FILE["secrets"].items():
        assert each == {"file": f"secrets/{name}"} and (folder / name).read_text("utf-8").strip()
    before = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert len({text for name, text in before.items() if name not in ("redis_conf",)}) == len(before) - 1
    assert subprocess.run(command, capture_output=True).returncode == 1
    assert before == {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    (tmp_path / "other.new").mkdir()  # a run before was ended in the middle
    (tmp_path / "other.new" / "api_key").write_text("half", encoding="utf-8")
    subprocess.run([*command[:-1], str(tmp_path / "other")], check=True, capture_output=True)
    assert (tmp_path / "other" / "api_key").read_text("utf-8") not in (before["api_key"], "half")
    assert not (tmp_path / "other.new").exists() and len([*(tmp_path / "other").iterdir()]) == len(before)


def test_the_keys_are_accepted_by_those_that_get_them(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(COMPOSE / "make_secrets.py"), str(tmp_path / "s")], check=True)

    def scopes(file: str, key: str) -> set[str]:
        principal = read_keys(tmp_path / "s" / file, {}).find((tmp_path / "s" / key).read_bytes().strip())
        assert principal is not None
        return set(principal.scopes)

    assert scopes("keys", "api_key") == {USER} and scopes("replica_keys", "replica_key") == {USER}
    assert ADMIN in scopes("keys", "admin_key") and ADMIN in scopes("replica_keys", "admin_key")
    assert ADMIN in scopes("replica_keys", option("router", "--replica-admin-key-file").removeprefix("/run/secrets/"))
    for name in ("replica_key", "replica_admin_key"):
        assert name in SERVICES["router"]["secrets"]
        assert read_keys(tmp_path / "s" / "keys", {}).find((tmp_path / "s" / name).read_bytes().strip()) is None


def test_prometheus_has_the_targets_of_the_file_and_the_rules_of_the_project() -> None:
    config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text("utf-8"))
    original = yaml.safe_load((PROMETHEUS_FOLDER / "prometheus.yml").read_text("utf-8"))
    original["scrape_configs"] = [
        each for each in original["scrape_configs"] if each["job_name"] != "chairlift-autoscaler"
    ]
    assert config == original
    targets = [
        target for job in config["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    for target in targets:
        name, _, port = target.partition(":")
        if name != "localhost":
            assert environ_of(SERVICES[name])["CHAIRLIFT_PORT"] == port
            assert "--public-metrics" in SERVICES[name]["command"]


def test_replicas_of_the_router_are_the_services() -> None:
    urls = [word.partition("=")[2] for word in SERVICES["router"]["command"] if word.startswith("--replica=")]
    assert urls == [f"http://{name}:{environ_of(SERVICES[name])['CHAIRLIFT_PORT']}" for name in REPLICAS]
    assert [each for each in SERVICES if each in SERVICES["router"]["depends_on"]] == [*REPLICAS, "redis"]


def test_the_file_for_gpus_gives_each_replica_its_own() -> None:
    cuda = read_compose(name="compose.cuda.yaml")["services"]
    assert list(cuda) == REPLICAS
    (dockerfile,) = {each["build"]["dockerfile"] for each in cuda.values()}
    assert (ROOT / dockerfile).exists()
    ids = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in cuda.values()]
    assert ids == [["0"], ["1"], ["2"]]
