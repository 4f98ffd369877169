"""The parts of a decoder together compute what the whole decoder does, in float64, for each architecture."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chairlift.core.errors import EngineDead
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.backends.communicator import Communicator
from chairlift.model.backends.sharded_backend import ShardedBackend, ShardedDecoder, ShardedOps
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext
from chairlift.model.layers.ops import TorchOps
from chairlift.model.loading.model_building import load_model
from chairlift.model.loading.tiny_model import tiny_config, tiny_model
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.formats import safetensors
from support_batches import Row, make_batch
from support_models import save_tiny
from support_ranks import CPU, run_ranks

IDS = torch.tensor([3, 200, 303, 0, 151, 152, 7, 150, 90, 31])


def outputs(model: CausalLM, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return hidden states and logits of IDS."""
    backend, groups = ReferenceAttention(), len(model.groups.windows)
    kv = allocate_kv(backend, model.groups, groups, 16, dtype, CPU)
    batch = make_batch([Row(len(IDS), len(IDS), tuple((group,) for group in range(groups)))], 16)
    hidden = model.forward(IDS % model.vocab_size, ForwardContext(batch, kv, backend, backend.plan(batch)))
    return hidden, model.logits(hidden)


def shard_of(folder: Path, communicator: Communicator) -> CausalLM:
    model, _ = load_model(
        folder, dtype="float64", device=CPU, max_model_len=64, shard=communicator.shard,
        choose_backend=lambda config: ShardedBackend.of(config, communicator, CPU),
    )  # fmt: skip
    return model


@pytest.mark.share(3)
@pytest.mark.parametrize(("kind", "num_ranks"), [
    ("llama", 2), ("llama-bias", 2), ("qwen2", 2), ("qwen3", 4), ("gemma3", 2), ("gemma3-softcap", 2),
    ("mistral-full", 2),
])  # fmt: skip
def test_the_parts_compute_what_the_whole_computes(kind: str, num_ranks: int, tmp_path: Path) -> None:
    folder = save_tiny(kind, tmp_path, vocab_size=305)  # a vocabulary that is not divisible
    whole, _ = load_model(folder, dtype="float64", device=CPU, max_model_len=64)
    with torch.inference_mode():
        hidden, logits = outputs(whole)
    results = run_ranks(num_ranks, lambda communicator: outputs(shard_of(folder, communicator)))
    for own_hidden, own_logits in results:
        assert own_logits.shape == (len(IDS), 305)
        torch.testing.assert_close(own_hidden, hidden, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(own_logits, logits, rtol=1e-9, atol=1e-9)
        assert torch.equal(own_logits, results[0][1]), "every rank samples from the same bits"


def test_a_model_in_bfloat16_runs_on_two_ranks() -> None:
    whole, _ = tiny_model(seed=2, dtype="bfloat16", device=CPU)

    def run(communicator: Communicator) -> Tensor:
        model, config = tiny_model(
            seed=2, dtype="bfloat16", device=CPU, shard=communicator.shard,
            choose_backend=lambda config: ShardedBackend.of(config, communicator, CPU),
        )  # fmt: skip
        assert isinstance(model, ShardedDecoder)
        assert (config.vocab_size, model.vocab_size, model.groups.caches[0].shape.num_kv_heads) == (259, 259, 1)
        return outputs(model, torch.bfloat16)[1]

    with torch.inference_mode():
        logits = outputs(whole, torch.bfloat16)[1].float()
    for own in run_ranks(2, run):
        torch.testing.assert_close(own.float(), logits, rtol=0.05, atol=float(logits.abs().max()) * 0.05)


def test_a_rank_reads_its_own_slices_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = save_tiny("llama-bias", tmp_path), dict[str, int]()

    class SlicesOnly:
        """A safetensors file that refuses to read a whole tensor."""

        def __init__(self, file: Path, **options: str) -> None:
            self._file = opened(file, **options)

        def get_slice(self, name: str) -> "CountingSlice":
            return CountingSlice(name, self._file.get_slice(name))

        @contextmanager
        def _inside(self) -> Iterator["SlicesOnly"]:
            yield self

    class CountingSlice:
        def __init__(self, name: str, inner: object) -> None:
            self._name, self._inner = name, inner

        def __getitem__(self, part: tuple[slice, ...]) -> Tensor:
            tensor: Tensor = self._inner[part]  # type: ignore[index]
            read[self._name] = tensor.numel()
            return tensor

    opened = safetensors.safe_open
    original = Checkpoint.open

    def open_headers(folder: Path, architecture: str) -> Checkpoint:
        made = original(folder, architecture)
        monkeypatch.setattr(safetensors, "safe_open", SlicesOnly)
        return made

    monkeypatch.setattr(Checkpoint, "open", staticmethod(open_headers))

    def load_last(communicator: Communicator) -> None:
        if communicator.shard.rank == 1:
            shard_of(folder, communicator)

    run_ranks(2, load_last)
    layer = "model.layers.1."
    assert read[f"{layer}self_attn.q_proj.weight"] == read[f"{layer}self_attn.o_proj.weight"] == 64 * 64 // 2
    assert read[f"{layer}mlp.down_proj.weight"] == read[f"{layer}mlp.up_proj.weight"] == 64 * 96 // 2
    assert read["lm_head.weight"] == read["model.embed_tokens.weight"] == 304 * 64 // 2
    assert read[f"{layer}input_layernorm.weight"] == 64
    assert f"{layer}self_attn.o_proj.bias" not in read, "the bias is added by rank 0"


def test_an_embedding_is_that_of_the_rank_that_has_the_id() -> None:
    table, ops = torch.randn(7, 3, dtype=torch.float64), TorchOps()
    ids = torch.tensor([0, 6, 3, 4, 4])

    def run(communicator: Communicator) -> Tensor:
        padded = torch.cat((table, torch.full((1, 3), torch.nan, dtype=torch.float64)))
        rows = padded[communicator.shard.rank * 4 : communicator.shard.rank * 4 + 4]
        return ShardedOps(ops, communicator).embed(ids, rows)

    for embedded in run_ranks(2, run):
        assert torch.equal(embedded, table[ids])


def test_bytes_for_the_cache_are_those_of_all_ranks_on_a_cpu() -> None:
    """Two ranks have half of the key/value heads each, so as many blocks fit as on one, not twice as many."""
    config = RunnerConfig(dtype="float64", device="cpu", kernels="torch", max_memory=2**20)
    alone = TorchRunner(config)
    num_blocks = alone.start().num_blocks
    alone.stop()

    def start(communicator: Communicator) -> tuple[int, int]:
        runner = TorchRunner(config, communicator=communicator)
        info = runner.start()
        runner.stop()
        return info.num_blocks, info.block_bytes

    results = run_ranks(2, start)
    assert [found for found, _ in results] == [num_blocks] * 2
    assert 2**20 - 4 * results[0][1] < sum(blocks * size for blocks, size in results) <= 2**20


def test_the_threads_of_a_host_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(tiny_config(), dtype="float32")
    monkeypatch.setattr("chairlift.model.backends.sharded_backend.usable_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert run_ranks(2, lambda each: ShardedBackend.of(config, each, CPU).torch_threads) == [4, 4]


def test_loading_ends_when_another_rank_is_lost(tmp_path: Path) -> None:
    folder, checks = save_tiny("llama", tmp_path), []

    def check() -> None:
        checks.append(None)
        if len(checks) == 7:
            raise EngineDead("rank 1 is lost")

    def load(communicator: Communicator) -> None:
        communicator.check_others = check
        with pytest.raises(EngineDead, match="rank 1 is lost"):
            shard_of(folder, communicator)

    run_ranks(1, load)
