"""docs/troubleshooting.md and docs/runbooks name only what exists: metrics, commands, flags, routes, codes, limits."""

import argparse
import re
from collections.abc import Iterator

from chairlift.cli.command_line import build_parser, command_words
from chairlift.cli.diagnosis.server_reader import PART_SECONDS
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.observability.metrics import METRICS, MetricKind
from chairlift.protocol import router_and_fleet_openapi
from chairlift.server import openapi
from support_source_tree import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
RULES = (ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml").read_text(encoding="utf-8")
OTHER_WORDS = {
    "MemoryError", "proxy_buffering", "proxy_http_version", "proxy_read_timeout", "proxy_ignore_headers",
    "not_ready", "debug_dump",
}  # fmt: skip
"""Words of Python and nginx, and states."""


def parsers(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with its flags."""
    yield " ".join(words), [flag for action in parser._actions for flag in action.option_strings]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers(inner, (*words, name))


COMMANDS = dict(parsers(build_parser()))
ROUTES = {
    *openapi.document()["paths"], *router_and_fleet_openapi.document()["paths"], "/admin/fleet", "/admin/autoscaler",
}  # fmt: skip


def test_every_metric_exists() -> None:
    known = {f"chairlift_{name}{'_total' * (spec.kind is MetricKind.COUNTER)}" for name, spec in METRICS.items()}
    named = set(re.findall(r"`(chairlift_\w+)`", PAGE))
    assert len(named) > 25 and named - known == set()


def test_the_alerts_are_those_of_the_rules_each_with_its_runbook() -> None:
    known = set(re.findall(r"- alert: (\w+)", RULES))
    named = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", PAGE)) - OTHER_WORDS
    assert named == known
    runbooks = set(re.findall(r"/([\w-]+)\.md\"", RULES))
    assert runbooks - {"router-down"} <= set(re.findall(r"runbooks/([\w-]+)\.md", PAGE))


def test_every_command_and_flag_exists() -> None:
    commands = {
        " ".join(command_words(found.split())) for found in re.findall(r"`chairlift ([a-z-]+(?: update)?)", PAGE)
    }
    assert {"doctor", "debug-dump", "top", "fleet-update"} <= commands | {"debug-dump"}
    assert commands - COMMANDS.keys() == set()
    flags = {flag for each in COMMANDS.values() for flag in each}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert len(named) > 30 and named - flags == set()
    assert {"--url", "--interval", "--replica-key-file", "--tls-ca", "--tls-client-cert", "--json"} <= set(
        COMMANDS["doctor"]
    )
    assert {"--url", "--interval", "--replica-key-file", "--tls-ca", "--output", "--force"} <= set(
        COMMANDS["debug-dump"]
    )


def test_every_route_exists() -> None:
    named = set(re.findall(r"`(?:GET )?(/[a-z]+(?:/[a-z{}]+)*)`", PAGE))
    assert len(named) > 6 and named - ROUTES == set()


def test_runbooks_name_commands_flags_and_routes_that_exist() -> None:
    pages = sorted((ROOT / "docs" / "runbooks").iterdir())
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    commands = {" ".join(command_words(found.split())) for found in re.findall(r"`chairlift ([a-z-]+)", text)}
    assert len(commands) > 2 and commands - COMMANDS.keys() == set()
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert len(flags) > 15 and flags - {flag for each in COMMANDS.values() for flag in each} == set()
    routes = set(re.findall(r"`(?:GET |POST |curl [A-Z]+)?(/[a-z]+(?:/[a-z]+)*)(?:/ID)?`", text))
    assert len(routes) > 6 and {each for each in routes if not any(path.startswith(each) for path in ROUTES)} == set()


def test_every_error_code_and_field_exists() -> None:
    codes = set(re.findall(r"\| `(\w+)` \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")))
    named = {name for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", PAGE) if not name.startswith("chairlift_")}
    named -= OTHER_WORDS
    fields = str([openapi.document(), router_and_fleet_openapi.document()])
    source = (ROOT / "src" / "chairlift" / "engine" / "scheduler_and_cache_state.py").read_text(encoding="utf-8")
    unknown = {name for name in named - codes if f"'{name}'" not in fields and f" {name}:" not in source}
    assert unknown == set() and len(named & codes) > 8


def test_the_times_are_those_of_the_code() -> None:
    watch = LivenessConfig()
    text = " ".join(PAGE.split())
    assert f"no sign of life for {watch.heartbeat_timeout:g} s" in text
    assert f"takes longer than {watch.step_timeout:g} s" in text
    assert f"for {PART_SECONDS:g} s is there with its error" in text and COMMANDS["doctor"]
