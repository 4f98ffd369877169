"""`chairlift fleet`: invalid input is one sentence before it listens."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.fleet.fleet_process import FleetParts
from support_cli import rejection_sentence


@pytest.mark.share(4)
@pytest.mark.parametrize(("words", "sentence"), [
    (["--min-replicas", "5"], "--min-replicas must be at most --max-replicas (4), got 5"),
    (["--target-wait", "0"], "--target-wait must be above 0, got 0"),
    (["--query", "queue=sum(length)", "--query-target", "queue=8"], "--query needs --prometheus-url"),
    (["--replica-option", "dtyp=x"], "--replica-option: `serve` has no option --dtyp"),
    (["--replica-ports", "8101"], "--replica-ports '8101' must be FIRST-LAST, as in 8101-8199"),
    (["--scaling", "x"], "--scaling must be one of target, threshold, got 'x'"),
    (["--replica", "http://a"], "unknown option --replica"),
    (["--discovery", "dns://a"], "unknown option --discovery"),
    (["--host", "0.0.0.0"], "--host 0.0.0.0 is not a loopback address and needs API keys; set --key-file"),
    (["--policy", "best"], "--policy must be one of round_robin"),
    (["--hold-timeout", "-1"], "--hold-timeout must be 0 or more, got -1"),
    (["a", "b"], "unexpected argument"),
])  # fmt: skip
def test_invalid_input_is_one_sentence_and_exit_code_two(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = main(["fleet", "--port", "0", "--state-dir", str(tmp_path / "state"), *words])
    assert rejection_sentence(capsys, code).startswith(sentence)


def test_the_list_of_the_fleets_own_replicas_is_believed_at_once_and_requests_are_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[FleetParts] = []
    monkeypatch.setattr("chairlift.cli.commands.fleet.serve", lambda parts: given.append(parts) or 0)
    assert main(["fleet", "--port", "0", "--state-dir", str(tmp_path / "state"), "--quiet"]) == 0
    config = given[0].router.config
    assert given[0].signals is None
    assert given[0].router.shown_settings["hold_timeout"] == 120.0
    assert (config.empty_grace_seconds, config.hold_timeout) == (0.0, 120.0)


def test_queries_of_prometheus_are_rules_of_the_autoscaler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[FleetParts] = []
    monkeypatch.setattr("chairlift.cli.commands.fleet.serve", lambda parts: given.append(parts) or 0)
    words = ["--prometheus-url", "http://127.0.0.1:9", "--query", "queue=sum(length)", "--query-target", "queue=8"]
    assert main(["fleet", "--port", "0", "--state-dir", str(tmp_path / "state"), "--quiet", *words]) == 0
    assert [(each.name, each.target) for each in given[0].autoscaler.targets.external] == [("queue", 8.0)]
    assert asyncio.run(read_and_close(given[0])) == {"queue": None}  # nothing answers there


async def read_and_close(parts: FleetParts) -> Mapping[str, float | None]:
    assert parts.signals is not None
    try:
        return await parts.signals.read()
    finally:
        await parts.signals.close()
