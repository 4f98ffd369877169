"""BatchInvariantOps by Triton's interpreter: a row has the bits that it has alone, after whole layers, too."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.triton import TritonAttention
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.activations import ACTIVATIONS
from chairlift.model.config.experts_config import SOFTMAX, ExpertRouterConfig
from chairlift.model.kernels.float8_linear import Float8Weight, quantize_rows
from chairlift.model.layers.batch_invariant_ops import BatchInvariantOps
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext
from chairlift.model.layers.decoder import TorchDecoder
from chairlift.model.layers.expert_router import ExpertRouter
from chairlift.model.layers.experts import Experts
from chairlift.model.layers.ops import TorchOps
from chairlift.model.layers.triton_ops import TritonOps, int4_product
from chairlift.model.loading.model_building import load_model
from chairlift.model.sampling.device.triton_sampling import TritonSamplingOps
from chairlift.model.weights.expert_weights import ExpertWeights
from support_batches import Row, make_batch
from support_models import save_tiny
from support_shares import FULL, for_each

CPU = torch.device("cpu")
OPS = BatchInvariantOps()
TOKENS = 21


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


WIDE = drawn(48)
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: OPS.linear(x, drawn(40, 48), drawn(40)),
    "float8": lambda x: OPS.linear(x, Float8Weight(*quantize_rows(drawn(32, 48))), drawn(32)),
    "norm": lambda x: OPS.rms_norm(x, WIDE, 1e-5),
    "norm of heads": lambda x: OPS.rms_norm(x.view(-1, 3, 16), drawn(3, 16), 1e-5),
    "sum and norm": lambda x: torch.cat(OPS.add_rms_norm(x, x * 3, WIDE, 1e-5), -1),
    "cap": lambda x: OPS.softcap(x * 30, 20.0),
    "rotation": lambda x: OPS.rotate(x.view(-1, 3, 16), drawn(1, 1, 16).expand(len(x), 1, 16).contiguous(),
                                     drawn(1, 1, 16, seed=1).expand(len(x), 1, 16).contiguous()),
    "logsumexp": lambda x: TritonSamplingOps().logsumexp(x, x.max(-1, keepdim=True).values),
    **{name: lambda x, name=name: OPS.gated_activation(*x.chunk(2, -1), name) for name in ACTIVATIONS},
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("name", CALLS)
def test_a_row_has_the_same_bits_alone_and_at_any_place_of_a_batch(name: str) -> None:
    call, x = CALLS[name], drawn(TOKENS, 48)
    together, order = call(x), torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
    assert together.isfinite().all() and together.std() > 0
    assert torch.equal(call(x[order].contiguous()), together[order])
    for at in (0, 7, TOKENS - 1):
        assert torch.equal(call(x[at : at + 1].contiguous())[0], together[at])


@for_each("is_stacked", [True, False])
def test_a_row_has_its_bits_after_a_layer_of_experts(is_stacked: bool) -> None:
    gate_up, down = drawn(7, 2 * 20, 48) * 0.2, drawn(7, 48, 20) * 0.2
    weights = ExpertWeights(tuple(gate_up), tuple(down), None, None, "silu", (gate_up, down) if is_stacked else None)
    config = ExpertRouterConfig(
        num_experts=7, experts_per_token=3, scoring=SOFTMAX, float32="scores", renormalizes=True
    )
    experts, x = Experts(ExpertRouter(config, drawn(7, 48)), weights, None), drawn(TOKENS, 48)
    together, order = experts(x, OPS), torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(together, experts(x, TorchOps()), rtol=1e-4, atol=1e-4)
    assert torch.equal(experts(x[order], OPS), together[order])
    for at in (0, 7, TOKENS - 1):
        assert torch.equal(experts(x[at : at + 1], OPS)[0], together[at])


def test_a_product_of_columns_that_lie_apart_equals_torch() -> None:
    x, weight = drawn(48, 9).t(), drawn(40, 48)
    torch.testing.assert_close(OPS.linear(x, weight, None), TorchOps().linear(x, weight, None), rtol=3e-6, atol=1e-5)


@pytest.fixture(scope="module", params=["qwen3", "gemma3"] if FULL else ["gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder: Path = save_tiny(request.param, tmp_path_factory.mktemp("tiny"))
    return load_model(
        folder, dtype="float32", device=CPU, max_model_len=64, choose_backend=lambda _: TorchBackend(OPS)
    )[0]


def logits(model: CausalLM, rows: list[Row], ids: Tensor, kv: list, backend: TritonAttention) -> Tensor:
    """Run a step of `rows` over the cache and return the logits of all its tokens."""
    batch = make_batch(rows, 16)
    context = ForwardContext(batch, kv, backend, backend.plan(batch))
    return model.logits(model.forward(ids, context))


def test_a_token_has_the_same_logits_however_its_prompt_is_divided_and_whatever_runs_beside_it(model: CausalLM) -> None:
    assert isinstance(model, TorchDecoder)
    backend, length, groups = TritonAttention(deterministic=True), 24 if FULL else 10, len(model.groups.windows)
    ids = torch.randint(8, 300, (length,), generator=torch.Generator().manual_seed(1))
    others = torch.randint(8, 300, (30,), generator=torch.Generator().manual_seed(2))

    def made(parts: list[int], beside: int) -> Tensor:
        kv = allocate_kv(backend, model.groups, 20 * groups, 16, torch.float32, CPU)
        tables = tuple(tuple(range(group * 20, group * 20 + 3)) for group in range(groups))
        more = tuple(tuple(range(group * 20 + 10, group * 20 + 13)) for group in range(groups))
        found, done = [], 0
        for size in parts:
            rows, step = [Row(size, done + size, tables)], ids[done : done + size]
            if beside and not done:
                rows.append(Row(beside, beside, more))
                step = torch.cat((step, others[:beside]))
                if size > 1 and beside == 1:
                    rows, step = rows[::-1], torch.cat((others[:1], ids[:size]))
            made_logits = logits(model, rows, step, kv, backend)
            found.append(made_logits[1:] if len(rows) == 2 and beside == 1 and size > 1 else made_logits[:size])
            done += size
        return torch.cat(found)

    whole = made([length], 0)
    more = (([length], 30), ([*[1] * 3, length - 3], 12), ([length - 7, *[1] * 7], 0)) if FULL else ()
    for parts, beside in (([7, 1, length - 8], 1), *more):
        assert torch.equal(made(parts, beside), whole), (parts, beside)


def test_no_product_is_that_of_another_implementation() -> None:
    assert BatchInvariantOps.products.keys() == TorchOps.products.keys()
    others = {*TorchOps.products.values(), *TritonOps.products.values()} - {int4_product}  # its tiles are fixed
    assert not others & {*BatchInvariantOps.products.values()}, "each must be the same in every batch"
