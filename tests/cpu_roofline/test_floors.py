"""The floors' tool: operations and bytes are counted right, and what is measured adds up."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch

from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.workload import WorkloadRequest
from chairlift.llm.build import prepare
from chairlift.model.kernels.cpu.decoder_program import DecoderProgram
from chairlift.model.kernels.cpu.threads import chosen_cpus
from chairlift.model.sampling.sampler import Sampler
from cpu_roofline import measurement
from cpu_roofline.__main__ import main, summary, table
from cpu_roofline.flops import Shape, flops
from cpu_roofline.peaks import Reader, products
from cpu_roofline.runner_timing import watching
from support_models import save_tiny
from support_native import need_native

CONFIG = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 100, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def item(prompt: int, output: int) -> WorkloadRequest:
    return WorkloadRequest(at=0.0, prompt_token_ids=tuple(range(prompt)), output_tokens=output)


def test_operations_are_counted_as_they_are_done() -> None:
    shape = Shape.of(CONFIG)
    assert (shape.head_dim, shape.products) == (16, ((64, 128), (64, 64), (64, 192), (96, 64)))
    assert shape.layer_weights == 2 * 64 * (128 + 64 + 192 + 96) and shape.head_weights == 6400
    assert shape.kv_bytes(3) == 3 * 2 * 2 * 2 * 32  # tokens, keys and values, bytes, layers, numbers
    # three tokens go through the layers, and see one, two and three; two of them through the head
    assert flops(shape, [item(2, 2)]) == 3 * 2 * shape.layer_weights + 2 * 2 * 6400 + 6 * 4 * 2 * 64
    assert flops(shape, [item(2, 2), item(2, 2)]) == 2 * flops(shape, [item(2, 2)])


def test_peaks_are_those_of_a_machine(tmp_path: Path) -> None:
    cpus = chosen_cpus(1)
    assert 0.01 < products(cpus, [(64, 64), (64, 128)]) < 100_000
    reader = Reader(tmp_path, cpus)
    assert 0.1 < reader.rate() < 10_000
    short, long = (min(reader.seconds(torch.ones(size)) for _ in range(5)) for size in (2**16, 2**24))
    assert long > 16 * short  # 256 times as much


@pytest.fixture(autouse=True)
def only_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `make test`: nobody tells the children where the tools are."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_native()
    return save_tiny("qwen3", tmp_path_factory.mktemp("model"), max_position_embeddings=1024)


def test_a_turn_adds_up(model: Path) -> None:
    found = measurement.measure(str(model), {"dtype": "bfloat16", "quantization": "int8", "num_blocks": 1024})
    config = json.loads((model / "config.json").read_text())
    shape = Shape.of(config)
    whole, single = found["w1"], found["single"]
    assert sum(whole["parts"].values()) == pytest.approx(whole["seconds"])
    assert all(spent > 0 for spent in whole["parts"].values()), whole["parts"]
    workload = generate("w1", vocab_size=config["vocab_size"], seed=0)
    assert whole["flops"] == flops(shape, workload.items)
    kept = shape.kv_bytes(64 + 24 // 2)
    numbers = shape.layer_weights + shape.head_weights
    assert numbers < single["bytes_per_token"] - kept < 1.6 * numbers  # a byte each, scales, and panels filled up
    assert found["attention"]["bytes_per_layer"] == 32 * 2048 * 2 * 2 * 2 * 32
    for part in (single, found["attention"]):
        assert all(took > 0 and floor > 0 for took, floor in part["seconds_and_floor"])


def test_patches_are_taken_back(model: Path) -> None:
    before = (DecoderProgram.run_step, DecoderProgram.score, Sampler.sample)
    prepared = prepare(str(model), {"dtype": "bfloat16", "num_blocks": 64})
    with closing(prepared.start().client) as client:
        with watching(client):
            assert all(
                now is not was
                for now, was in zip(
                    (DecoderProgram.run_step, DecoderProgram.score, Sampler.sample), before, strict=True
                )
            )
        assert (DecoderProgram.run_step, DecoderProgram.score, Sampler.sample) == before


def test_a_report_is_written_and_read_aloud(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpu_roofline.__main__.PATIENCE", 0.0)
    assert main([str(model), "--repeat", "1", "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["summary"] == summary(report["turns"]) and len(report["turns"]) == 1
    said = capsys.readouterr().err
    for line in table(report["summary"]):
        assert line in said
    assert str(tmp_path) not in json.dumps(report) and str(model.parent) not in json.dumps(report)


def test_each_turn_is_held_against_its_own_floors() -> None:
    turns = []
    for speed in (1.0, 2.0, 4.0):  # a machine that changes its mind: the shares stay
        turns.append({
            "w1": {
                "seconds": 10 / speed, "output_tokens_per_second": 5 * speed, "flops": 6e9,
                "peak_gflops": [speed, 0.5 * speed], "parts": {"head": 1 / speed},
            },
            "single": {"seconds_and_floor": [(2 / speed, 1 / speed), (6 / speed, 3 / speed), (2 / speed, 4 / speed)]},
            "attention": {"seconds_and_floor": [(1.5 / speed, 1 / speed)]},
        })  # fmt: skip
    found = summary(turns)
    assert found["w1_of_compute_floor"] == pytest.approx(0.6) and found["single_over_bandwidth_floor"] == 2.0
    assert found["attention_over_bandwidth_floor"] == 1.5 and found["single_tokens_per_second"] == 1.0
    assert found["w1_parts_seconds"] == {"head": 0.5} and found["peak_gflops"] == 2.0
