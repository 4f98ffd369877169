"""docs/deployment.md: its commands, values and names are those of the programs and files that they are about."""

import re
import shlex
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from chairlift.cli.command_line import build_parser, check_command
from chairlift.cli.main import main
from chairlift.cli.settings.config_file import read_config
from chairlift.router.proxy.upstream import UpstreamConfig
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.auth.principal import ADMIN, USER
from support_compose import COMPOSE
from support_source_tree import ROOT

TEXT = (ROOT / "docs" / "deployment.md").read_text("utf-8")
BLOCKS = re.findall(r"^<!-- not run: [^\n]+ -->\n```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]
INLINE = [code for code in re.findall(r"`([^`\n]+)`", TEXT) if code.startswith(("chairlift ", "docker compose -f"))]
PARSER = build_parser()
OF_THE_SYSTEM = {"useradd", "install", "chown", "chmod", "systemctl", "curl", "mkdir", "/opt/chairlift/bin/pip"}


def named_files(words: list[str]) -> list[str]:
    """Return the files of the project that a command reads."""
    return [word for word in words if word.startswith("deploy/") and "secrets" not in word]


def check_program(words: list[str]) -> None:
    """Check a command of Chairlift with its own parser; a name alone is one of its commands."""
    check_command(PARSER, words)
    if len(words) > 1:
        PARSER.parse_args(words)


@pytest.mark.share(20)
@pytest.mark.parametrize("command", [*COMMANDS, *INLINE])
def test_a_command_names_what_is_there(command: str) -> None:
    words = shlex.split(command)
    words = words[: words.index(">")] if ">" in words else words
    for file in named_files(words):
        assert list(ROOT.glob(file)), file
    program = words[0]
    if program.endswith("chairlift") and len(words) > 1:
        check_program(words[1:])
    elif program == "docker" and words[1] == "run":
        at = next(number for number, word in enumerate(words) if word.startswith("chairlift:"))
        check_program(words[at + 1 :])
    elif program == "docker" and words[1] == "compose":
        services = yaml.safe_load((COMPOSE / "compose.yaml").read_text("utf-8"))["services"]
        assert {word for word in words[4:] if re.fullmatch(r"(replica-\d|router)", word)} <= services.keys()
        if "chairlift" in words:
            check_program(words[words.index("chairlift") + 1 :])
    elif program == "helm":
        check_helm(words)
    elif program == "nginx":
        name = Path(words[words.index("-c") + 1])
        assert str(name.parent) in TEXT and (ROOT / "deploy" / "nginx" / name.name).exists()
    elif program in ("docker", "kubectl", "cp", "python3"):
        assert program != "cp" or named_files(words)
    else:
        assert program in OF_THE_SYSTEM, program


def test_the_commands_for_kubernetes_make_the_keys_of_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(each) for each in COMMANDS if each.startswith("chairlift key router")]
    for *words, arrow, file in commands:
        assert arrow == ">" and main(words[1:]) == 0
        Path(file).write_text(capsys.readouterr().out, "utf-8")
    keys = read_keys(Path("replica-keys.txt"), {})
    upstream = UpstreamConfig(key_file=Path("api-key"), admin_key_file=Path("admin-key"))
    user, admin = keys.find(upstream.read_key().encode()), keys.find(upstream.read_admin_key().encode())
    assert user is not None and user.scopes == {USER} and admin is not None and admin.scopes == {ADMIN}
    (secret,) = [each for each in COMMANDS if "create secret generic chairlift-replica-keys" in each]
    assert {word.removeprefix("--from-file=") for word in secret.split() if word.startswith("--from-file=")} == {
        "keys.txt=replica-keys.txt", "api-key", "admin-key",
    }  # fmt: skip


def check_helm(words: list[str]) -> None:
    chart = helm.Chart.load(ROOT / words[words.index("chairlift") + 1])
    values: dict[str, Any] = {}
    for at, word in enumerate(words):
        if word == "--set":
            for key, value in helm.parse_set_string(words[at + 1]).items():
                values[key] = merged(values.get(key, {}), value)
    chart.validate_schema(values)
    assert chart.render(values, name="chairlift")


def merged(one: Any, other: Any) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: merged(one.get(key, {}), value) for key, value in other.items()}}
    return other


def test_there_are_commands_and_every_block_of_them_is_checked() -> None:
    assert len(COMMANDS) > 20 and all(line.startswith("$ ") for block in BLOCKS for line in block.splitlines())
    assert TEXT.count("```console") == len(BLOCKS)


def test_the_settings_file_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "serve.yaml").write_text(text, "utf-8")
    file = read_config(str(tmp_path / "serve.yaml"))
    assert not file.problems and len(file.values) == 5


def test_files_variables_and_settings_that_the_page_names_exist() -> None:
    for folder in set(re.findall(r"`(deploy/[\w/.-]+)`", TEXT)):
        assert (ROOT / folder).exists() or folder in ("deploy/compose/secrets", "deploy/compose/models"), folder
    compose = (COMPOSE / "compose.yaml").read_text("utf-8")
    table = TEXT.partition("| variable |")[2].partition("\n\n")[0]
    variables = set(re.findall(r"`((?:CHAIRLIFT_)?[A-Z_]+)`", table))
    assert variables == set(re.findall(r"\$\{(\w+)", compose))
    nginx = "".join(path.read_text("utf-8") for path in (ROOT / "deploy" / "nginx").glob("*.conf"))
    for setting in re.findall(r"`(proxy_\w+ \w+|gzip off|keepalive_timeout \w+|client_\w+ \d+)`", TEXT):
        assert f"{setting};" in nginx, setting
