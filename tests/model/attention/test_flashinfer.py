"""FlashInferAttention over the stand-in of its package: what is planned and when, and errors at the start."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import support_flashinfer
from chairlift.core.errors import ConfigError
from chairlift.model.attention.base import AttentionSpec
from chairlift.model.attention.flashinfer import (
    PLAN_PARAMETERS,
    RUN_PARAMETERS,
    WRAPPER_PARAMETERS,
    FlashInferAttention,
    find_wrapper,
    flashinfer_factory,
)
from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.attention.triton import TritonAttention
from support_attention_contract import CPU, attended, dense, fill, make_case
from support_attention_library import installed_parameters, stand_in_parameters
from support_cuda_device import simulate_gpu
from support_flashinfer import BatchPrefillWithPagedKVCacheWrapper

BFLOAT16 = torch.bfloat16
MADE: list["Recorded"] = []


class Recorded(BatchPrefillWithPagedKVCacheWrapper):
    """The stand-in, with the options of its calls in order."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        MADE.append(self)

    def plan(self, **options: Any) -> None:  # type: ignore[override]
        self.calls.append(("plan", options))
        super().plan(**options)

    def run(self, **options: Any) -> Any:  # type: ignore[override]
        self.calls.append(("run", options))
        return super().run(**options)


@pytest.fixture
def backend() -> FlashInferAttention:
    MADE.clear()
    return FlashInferAttention(Recorded, TorchAttention(), CPU)


@pytest.mark.parametrize(
    ("name", "used"),
    [("__init__", WRAPPER_PARAMETERS), ("plan", PLAN_PARAMETERS), ("run", RUN_PARAMETERS)],
)
def test_the_stand_in_has_the_parameters_of_the_package(name: str, used: tuple[str, ...]) -> None:
    own = stand_in_parameters(getattr(BatchPrefillWithPagedKVCacheWrapper, name))
    assert set(used) <= set(own)
    assert own == installed_parameters("flashinfer", "prefill.py", f"BatchPrefillWithPagedKVCacheWrapper.{name}")


def test_decodes_and_chunks_have_wrappers_of_their_own(backend: FlashInferAttention) -> None:
    case = make_case("mixed", 16, 2, 2, 20, 3, seed=1, width=64)
    attended(backend, case, AttentionSpec(0, 0.25, 20, 5.0), 16, BFLOAT16)
    decodes, chunks = MADE
    assert (decodes.backend, chunks.backend) == ("fa2", "auto")
    assert decodes._planned["qo_indptr"].tolist() == [0, 1, 2] and chunks._planned["qo_indptr"].tolist() == [
        0,
        3,
        43,
        108,
    ]
    for one in MADE:
        (_, planned), (_, run) = one.calls
        assert (planned["window_left"], planned["logits_soft_cap"], planned["sm_scale"]) == (19, 5.0, 0.25)
        assert run["paged_kv_cache"][0].shape[1:] == (16, 2, 64)
    assert decodes._planned["paged_kv_last_page_len"].tolist() == [6, 4]
    assert decodes._planned["paged_kv_indptr"].tolist() == [0, 1, 3]  # 6 tokens, and 20 of 100


def test_layers_of_a_kind_share_a_plan(backend: FlashInferAttention) -> None:
    case = make_case("mixed", 16, 2, 2, 20, 0, seed=1, width=64)
    kv, query = fill(backend, case, 16, BFLOAT16), case.query.to(BFLOAT16)
    for _ in range(2):  # steps
        plan = backend.plan(case.batch)
        for window, scale in ((20, 0.25), (20, 0.25), (None, 0.25), (20, 0.5)):
            backend.attend(query, kv, case.batch, AttentionSpec(0, scale, window), plan, torch.empty_like(query))
    assert [one.num_plans for one in MADE] == [2] * 6
    assert [len(one.calls) for one in MADE] == [6, 6, 4, 4, 4, 4]


def test_a_plan_waits_until_the_one_before_is_copied(backend: FlashInferAttention) -> None:
    """The package keeps a plan's numbers in pinned memory of its own, and copies them when the GPU comes to it."""
    case = make_case("pure decode", 16, 2, 2, None, 0, seed=1, width=64)
    attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    (wrapper,), calls = backend._wrappers.values(), MADE[0].calls

    class Event:
        def record(self) -> None:
            calls.append(("record", {}))

        def synchronize(self) -> None:
            calls.append(("synchronize", {}))

    wrapper.copied, calls[:] = Event(), []  # type: ignore[assignment]
    attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    assert [name for name, _ in calls] == ["synchronize", "plan", "record", "run"]


def test_an_output_that_is_not_contiguous_is_copied(backend: FlashInferAttention) -> None:
    case = make_case("mixed", 16, 2, 2, None, 2, seed=2, width=64)
    kv, query = fill(backend, case, 16, BFLOAT16), case.query.to(BFLOAT16)
    results = [
        torch.full_like(query, torch.nan),
        torch.full((*query.shape[:2], 128), torch.nan, dtype=BFLOAT16)[..., :64],
    ]
    kv.key.nan_to_num_(0.5), kv.value.nan_to_num_(0.5)
    for out in results:
        backend.attend(query, kv, case.batch, AttentionSpec(0, 0.25), backend.plan(case.batch), out)
    assert torch.equal(*results) and not results[1][-2:].any() and results[1].isfinite().all()


@pytest.mark.full
def test_the_kernels_of_triton_write_its_cache() -> None:
    case = make_case("chunk behind a prefix", 16, 2, 2, None, 0, seed=3, width=64)
    backend = FlashInferAttention(BatchPrefillWithPagedKVCacheWrapper, TritonAttention(), CPU)
    found = attended(backend, case, AttentionSpec(0, 0.25), 16, BFLOAT16)
    assert (found.double() - dense(case, AttentionSpec(0, 0.25), BFLOAT16)).abs().max() <= 2e-2


@pytest.mark.parametrize("method", ["plan", "run"])
def test_the_package_fails_at_the_start_or_in_a_step(
    method: str, backend: FlashInferAttention, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, spec = make_case("pure decode", 16, 2, 2, None, 0, seed=4, width=64), AttentionSpec(0, 0.25)
    works = getattr(Recorded, method)

    def fail(self: Recorded, **options: Any) -> None:
        raise RuntimeError("ninja exited with 1")

    monkeypatch.setattr(Recorded, method, fail)
    with pytest.raises(ConfigError, match=r"'flashinfer' fails, since flashinfer-python .* RuntimeError: ninja exited"):
        attended(backend, case, spec, 16, BFLOAT16)
    monkeypatch.setattr(Recorded, method, works)
    attended(backend, case, spec, 16, BFLOAT16)
    monkeypatch.setattr(Recorded, method, fail)
    with pytest.raises(RuntimeError, match="ninja exited with 1"):
        attended(backend, case, spec, 16, BFLOAT16)


def test_a_missing_or_older_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_gpu(monkeypatch, (8, 0))
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(
        ConfigError, match="needs the package flashinfer-python, which is not installed; run: pip install"
    ):
        flashinfer_factory("cuda", "bfloat16")
    older = ModuleType("flashinfer")
    monkeypatch.setitem(sys.modules, "flashinfer", older)
    with pytest.raises(ConfigError, match=r"has no flashinfer\.BatchPrefillWithPagedKVCacheWrapper"):
        find_wrapper()

    class Older(BatchPrefillWithPagedKVCacheWrapper):
        def plan(self, qo_indptr: Any, paged_kv_indptr: Any, head_dim: int) -> None:  # type: ignore[override]
            pass

    older.BatchPrefillWithPagedKVCacheWrapper = Older  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError, match=r"Older.plan of flashinfer-python .* has no parameter causal, head_dim_qk, kv_"
    ):
        find_wrapper()
    monkeypatch.setitem(sys.modules, "flashinfer", support_flashinfer.stand_in())
    assert find_wrapper() is BatchPrefillWithPagedKVCacheWrapper


def test_graphs_cannot_hold_its_steps_and_heads_are_checked(backend: FlashInferAttention) -> None:
    assert not backend.supports_cuda_graph
    with pytest.raises(ConfigError, match="'flashinfer' has heads of 64, 128, 256 numbers, the model has 80"):
        backend.allocate_kv_cache(1, 4, 16, 2, 80, BFLOAT16, CPU)
