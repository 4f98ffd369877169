"""Whole models with weights of 8-bit floats: logits against a reference, tokens on every path, memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chairlift import demo
from chairlift.model.attention.triton import TritonAttention
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.backends.sharded_backend import ShardedDecoder
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.kernels.float8_linear import Float8Weight, quantize_rows
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.layers.causal_lm_protocol import CausalLM
from chairlift.model.layers.fused_ops import FusedOps
from chairlift.model.layers.ops import Ops
from chairlift.model.loading.model_building import load_model
from chairlift.model.runner.model_loading import load
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.weights.float8_packer import Float8Packer
from chairlift.text.tokenizer import HFTokenizer
from support_batches import teacher_forced_logits
from support_device_runner import use_device
from support_device_stream import SimulatedStream
from support_models import save_tiny
from support_ranks import run_ranks
from support_runner import GREEDY, PROMPT, SEEDED, started

CPU = torch.device("cpu")
IDS = [[(7 * at + row) % 300 for at in range(20 + row)] for row in range(3)]


class ReferenceOps(FusedOps):
    """Ops whose products are those of the dequantized numbers in float64, with scales that may be wrong."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(packs=False)
        self._factor = factor
        self.products = {**self.products, Float8Weight: self._float8_product}

    def _float8_product(self, x: Tensor, weight: Float8Weight, bias: Tensor | None) -> Tensor:
        (values, scales), wide = quantize_rows(x), weight.values.double() * weight.scales.double()[:, None]
        product = (values.double() * scales.double()[:, None] * self._factor) @ wide.T
        return (product if bias is None else product + bias.double()).to(x.dtype)


def loaded(folder: Path, ops: Ops, *, float8: bool = True) -> CausalLM:
    backend = TorchBackend(ops, packer=Float8Packer(ops.pack) if float8 else None)
    return load_model(folder, dtype="float32", device=CPU, max_model_len=None, choose_backend=lambda _: backend)[0]


def logits(model: CausalLM, ids: list[list[int]] = IDS, **options: Any) -> list[Tensor]:
    return teacher_forced_logits(model, ids, torch.float32, **options)


def distances(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the relative distance of each sequence's logits."""
    return [float((one - two).norm() / two.norm()) for one, two in zip(found, expected, strict=True)]


@pytest.mark.parametrize("kind", ["llama-bias", "qwen3", "gemma3"])
def test_logits_are_those_of_the_dequantized_numbers(kind: str, tmp_path: Path) -> None:
    """A number between two 8-bit floats may be rounded to the other one after sums in another order: rarely so."""
    folder = save_tiny(kind, tmp_path)
    expected = logits(loaded(folder, ReferenceOps()))
    found = distances(logits(loaded(folder, FusedOps(packs=False))), expected)
    assert min(found) < 1e-4 and max(found) < 0.08, found
    plain = distances(logits(loaded(folder, FusedOps(packs=False), float8=False)), expected)
    assert min(plain) > 0.05, "the weights are rounded"
    wrong = distances(logits(loaded(folder, ReferenceOps(1.25))), expected)
    assert min(wrong) > 0.01, "a wrong scale would be seen"


def test_logits_of_a_trained_model_are_near_those_of_its_own_weights() -> None:
    tokenizer = HFTokenizer.load(demo.FOLDER)
    text = "Chairlift serves language models. The engine runs a step, and each step has the tokens of many requests."
    ids = [tokenizer.encode(text)[:60]]
    plain, float8 = (
        load(RunnerConfig(model=str(demo.FOLDER), dtype="float32", device="cpu", quantization=quantization))
        for quantization in ("none", "fp8")
    )
    expected, found = (logits(each.model, ids)[0].log_softmax(-1) for each in (plain, float8))
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert 1e-6 < float(divergence.mean()) < 0.15
    assert float((expected.argmax(-1) == found.argmax(-1)).float().mean()) > 0.8


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(RunnerConfig(device="cpu", quantization="fp8"))


@pytest.mark.full
def test_a_request_has_the_same_tokens_alone_in_a_batch_in_chunks_and_on_a_device(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, sampling = [[number, *PROMPT] for number in range(4)], [GREEDY, GREEDY, SEEDED, SEEDED]

    def tokens(together: bool, **options: Any) -> list[list[int]]:
        runner, driver = started(model, **options)
        sequences = [driver.add(prompt, one) for prompt, one in zip(prompts, sampling, strict=True)]
        if together:
            driver.generate_all(sequences, 10, max_chunk=13)
        else:
            for sequence in sequences:
                driver.generate(sequence, 10)
        runner.stop()
        return [sequence.outputs[:10] for sequence in sequences]

    wanted = tokens(together=False)
    assert len({tuple(each) for each in wanted}) > 1 and tokens(together=True) == wanted
    for graphs in ("on", "off"):
        use_device(monkeypatch, stream := SimulatedStream())
        assert tokens(together=True, use_cuda_graph=graphs, max_model_len=128) == wanted
        assert (stream.num_graphs > 0) == (graphs == "on") and stream.given > 0


def test_weights_take_half_the_memory_and_the_startup_report_says_so(tmp_path: Path) -> None:
    folder, infos, sizes = save_tiny("llama", tmp_path), {}, {}
    for quantization in ("none", "fp8"):
        runner = TorchRunner(RunnerConfig(model=str(folder), dtype="bfloat16", device="cpu", kernels="torch",
                                          num_blocks=16, quantization=quantization))  # fmt: skip
        infos[quantization] = runner.start()
        layers = runner.model._layers  # type: ignore[attr-defined]
        linears = [each for layer in layers for each in (layer.mixer.projection, layer.mixer.output,
                                                         layer.mlp.gate_up, layer.mlp.down)]  # fmt: skip
        weights = [each.weight for each in linears]
        assert all(isinstance(each, Float8Weight) == (quantization == "fp8") for each in weights)
        sizes[quantization] = sum(each.num_bytes if isinstance(each, Float8Weight) else each.nbytes for each in weights)
        runner.stop()
    assert 0.5 < sizes["fp8"] / sizes["none"] < 0.56
    assert infos["none"].facts.weight_bytes - infos["fp8"].facts.weight_bytes == sizes["none"] - sizes["fp8"]
    report = dict(infos["fp8"].startup_report)
    assert report["quantization"] == f"fp8 (e4m3), 21 weights of layers in {sizes['fp8'] / 2**20:.1f} MiB"
    assert report["kernels"] == "torch (quantization is fp8)"
    assert "quantization" not in dict(infos["none"].startup_report)
    assert infos["fp8"].facts.quantization == "fp8" and infos["fp8"].model_id != infos["none"].model_id


def test_two_ranks_round_as_little_as_one_does(tmp_path: Path) -> None:
    """A rank has half the columns of o_proj and down_proj, whose rows then have scales of their own."""
    folder = save_tiny("llama", tmp_path)
    options = RunnerConfig(model=str(folder), dtype="float32", device="cpu", quantization="fp8")
    exact, whole = logits(loaded(folder, FusedOps(packs=False), float8=False)), logits(load(options).model)

    def run(communicator: Communicator) -> tuple[list[Tensor], str]:
        part = load(options, communicator)
        assert isinstance(part.model, ShardedDecoder)
        return logits(part.model), dict(part.report)["quantization"]

    results = run_ranks(2, run)
    for found, report in results:
        assert report.startswith("fp8 (e4m3), 21 weights of layers in ")
        assert all(torch.equal(one, two) for one, two in zip(found, results[0][0], strict=True))
        for own, one, other in zip(*(distances(*pair) for pair in ((found, exact), (whole, exact), (found, whole))),
                                   strict=True):  # fmt: skip
            assert 0 < own < 1.5 * one and other < 1.5 * one


@pytest.mark.full
def test_batch_invariant_ops_give_a_row_the_same_bits_alone_and_in_a_batch(tmp_path: Path) -> None:
    model = loaded(save_tiny("llama", tmp_path), BatchInvariantOps())

    def computed(ids: list[list[int]], **options: Any) -> list[Tensor]:
        return logits(model, ids, backend=TritonAttention(deterministic=True), **options)

    ids = [each[:4] for each in IDS[:2]]
    together, alone = computed(ids, max_chunk=3), [computed(ids[:1], max_chunk=size)[0] for size in (1, 64)]
    assert all(torch.equal(together[0], each) and each.isfinite().all() for each in alone)
