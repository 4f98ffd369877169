"""make_commands(): each run is a valid command of `chairlift bench offline` with the peers that are prepared."""

import os
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from chairlift.bench.peers.registry import peers_of
from chairlift.cli.command_line import build_parser
from cpu_bench.__main__ import main
from cpu_bench.bench_commands import COMPARISONS, WORKLOADS, make_commands
from cpu_bench.peer_environments import AVX2_ENVIRON, LLAMA_SERVER, PEERS, PRECISIONS, PeerEnvironments
from cpu_bench.random_models import SHAPES


def prepare_fakes(folder: Path) -> PeerEnvironments:
    programs = [
        "vllm/bin/python",
        "openvino/bin/python",
        *(f"llama.cpp/llama_cpp_python-1/vendor/llama.cpp/{build}/{LLAMA_SERVER}" for build in ("build", "build-avx2")),
    ]
    exported = [f"exported/{model}-{kind}" for model in SHAPES for kind in PRECISIONS["openvino"].values()]
    gguf = [f"gguf/{model}-{kind}.gguf" for model in SHAPES for kind in PRECISIONS["llama.cpp"].values()]
    for name in [*programs, *exported, *gguf]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return PeerEnvironments(folder, lambda text: None)


def all_commands(peers: PeerEnvironments, folder: Path) -> list[list[str]]:
    return list(make_commands(peers, list(SHAPES), WORKLOADS, [each.name for each in COMPARISONS], 3, folder))


def test_every_run_is_a_valid_command(tmp_path: Path) -> None:
    commands = all_commands(prepare_fakes(tmp_path), tmp_path)
    assert len(commands) == len(SHAPES) * (len(WORKLOADS) * 7 + 1)
    assert len({command[command.index("--json") + 1] for command in commands}) == len(commands)
    parser = build_parser()
    for command in commands:
        options = parser.parse_args(command)
        assert peers_of(options.against, options.peer) and options.repeat == 3
        assert options.workload in WORKLOADS
    named = {name.partition("@")[0] for command in commands for name in parser.parse_args(command).against}
    assert named == {*PEERS, "transformers", "transformers-single"}


@pytest.mark.parametrize("missing", ["vllm/bin/python", "gguf/qwen06-bf16.gguf"])
def test_a_peer_that_is_not_prepared_is_left_out(missing: str, tmp_path: Path) -> None:
    peers = prepare_fakes(tmp_path)
    before = all_commands(peers, tmp_path)
    (tmp_path / missing).unlink()
    after = all_commands(peers, tmp_path)
    is_shorter = [len(a) > len(b) for a, b in zip(before, after, strict=True)]
    assert any(is_shorter) and not all(is_shorter)


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], *, env: Mapping[str, str], check: bool) -> CompletedProcess[bytes]:
        ran.append(command)
        return CompletedProcess(command, {2: 3, 3: 4}.get(len(ran), 0))

    monkeypatch.setattr("cpu_bench.__main__.subprocess.run", run)
    assert main(["run", str(tmp_path), "--into", str(tmp_path)]) == 3
    assert len(ran) == len(all_commands(PeerEnvironments(tmp_path, lambda text: None), tmp_path))


def test_avx2_is_forced_in_every_engine_and_named_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_fakes(tmp_path)
    ran: list[tuple[list[str], Mapping[str, str]]] = []

    def run(command: list[str], *, env: Mapping[str, str], check: bool) -> CompletedProcess[bytes]:
        ran.append((command, env))
        return CompletedProcess(command, 0)

    monkeypatch.setattr("cpu_bench.__main__.subprocess.run", run)
    selection = ["--models", "smol135", "--workloads", "w1", "--comparisons", "int8", "--into", str(tmp_path)]
    for words in ([], ["--avx2"]):
        assert main(["run", str(tmp_path), *selection, *words]) == 0
    (plain, own), (forced, environ) = ran
    assert environ.items() - os.environ.items() == AVX2_ENVIRON.items() and own == dict(os.environ)
    assert any("/build/bin/" in word for word in plain) and any("/build-avx2/bin/" in word for word in forced)
    for setting in ("openvino@int8.precision=f32", "openvino@int8.quantized_group=0"):
        assert setting in forced and setting not in plain
    assert f"{tmp_path}/cpu-smol135-w1-int8-avx2.json" in forced and f"{tmp_path}/cpu-smol135-w1-int8.json" in plain
