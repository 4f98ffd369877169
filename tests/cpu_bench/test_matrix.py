"""The CPU yardstick: every run is a command that `chairlift bench offline` takes, with the peers that are prepared."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from chairlift.bench.peers.registry import peers_of
from chairlift.cli.command_line import build_parser
from cpu_bench.__main__ import main
from cpu_bench.matrix import MEETINGS, WORKLOADS, commands
from cpu_bench.models import SHAPES
from cpu_bench.peers import NAMES, PRECISIONS, SERVER, Peers


def prepared(folder: Path) -> Peers:
    programs = ["vllm/bin/python", "openvino/bin/python", f"llama.cpp/llama_cpp_python-1/vendor/llama.cpp/{SERVER}"]
    exported = [f"exported/{model}-{kind}" for model in SHAPES for kind in PRECISIONS["openvino"].values()]
    gguf = [f"gguf/{model}-{kind}.gguf" for model in SHAPES for kind in PRECISIONS["llama.cpp"].values()]
    for name in [*programs, *exported, *gguf]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return Peers(folder, lambda text: None)


def everything(peers: Peers, folder: Path) -> list[list[str]]:
    return list(commands(peers, list(SHAPES), WORKLOADS, [each.name for each in MEETINGS], 3, folder))


def test_every_run_is_a_command_that_is_understood(tmp_path: Path) -> None:
    made = everything(prepared(tmp_path), tmp_path)
    assert len(made) == len(SHAPES) * (len(WORKLOADS) * 2 + 1)
    assert len({words[words.index("--json") + 1] for words in made}) == len(made)
    parser = build_parser()
    for words in made:
        asked = parser.parse_args(words)
        assert peers_of(asked.against, asked.peer) and asked.repeat == 3
        assert asked.workload in WORKLOADS
    named = {name.partition("@")[0] for words in made for name in parser.parse_args(words).against}
    assert named == {*NAMES, "transformers", "transformers-single"}


@pytest.mark.parametrize("missing", ["vllm/bin/python", "gguf/qwen06-bf16.gguf"])
def test_a_peer_that_is_not_prepared_is_left_out(missing: str, tmp_path: Path) -> None:
    peers = prepared(tmp_path)
    before = everything(peers, tmp_path)
    (tmp_path / missing).unlink()
    after = everything(peers, tmp_path)
    gone = [len(a) > len(b) for a, b in zip(before, after, strict=True)]
    assert any(gone) and not all(gone)


def test_a_run_that_fails_leaves_the_others_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> CompletedProcess[bytes]:
        ran.append(command)
        return CompletedProcess(command, {2: 3, 3: 4}.get(len(ran), 0))

    monkeypatch.setattr("cpu_bench.__main__.subprocess.run", run)
    assert main(["run", str(tmp_path), "--into", str(tmp_path)]) == 3
    assert len(ran) == len(everything(Peers(tmp_path, lambda text: None), tmp_path))
