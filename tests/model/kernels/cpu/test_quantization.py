"""Accuracy of int8: next-token distributions against those of float32 and of llama.cpp's Q8_0.

Q8_0 on a CPU quantises weights and the inputs of every product in groups of 32. Each group has a float16 scale that
maps its largest value to 127. Sums are int32, everything else is float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chairlift.llm.builtin_models import embedded_folder
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.backends.model_backend import ModelBackend
from chairlift.model.backends.native_backend import NativeBackend
from chairlift.model.backends.torch_backend import TorchBackend
from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.causal_lm_protocol import CausalLM, ForwardContext
from chairlift.model.layers.ops import TorchOps
from chairlift.model.loading.model_building import load_model, random_model
from chairlift.model.weights.parameter_loader import ParameterLoader
from support_batches import Row, make_batch
from support_native import need_native

CPU = torch.device("cpu")
GROUP = 32
LENGTH = 48
SHAPE = parse_decoder_config({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
})  # fmt: skip
SEQUENCES = 64


def q8_0(values: Tensor) -> Tensor:
    """Round a tensor [..., I] as Q8_0 does."""
    padded = functional.pad(values.float(), (0, -values.shape[-1] % GROUP))
    groups = padded.unflatten(-1, (-1, GROUP))
    scale = groups.abs().amax(-1, keepdim=True) / 127
    rounded = torch.where(scale > 0, (groups / scale).round(), 0.0) * scale.half().float()
    return rounded.flatten(-2)[..., : values.shape[-1]]


class Q8Ops(TorchOps):
    """Linear operations of a Q8_0 model."""

    def pack(self, weight: Tensor) -> Tensor:
        return q8_0(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super().linear(q8_0(x), weight, bias)


class Q8Backend(TorchBackend):
    """Backend of a Q8_0 model, which quantises its tied embedding table, too."""

    def wrap_loader(self, loader: ParameterLoader) -> ParameterLoader:
        return replace(super().wrap_loader(loader), packs_table=lambda name, tied: tied)


Loaded = Callable[[str, ModelBackend | None], tuple[CausalLM, DecoderConfig]]


def demo(dtype: str, model_backend: ModelBackend | None) -> tuple[CausalLM, DecoderConfig]:
    folder = embedded_folder(None)
    assert folder is not None
    chosen = None if model_backend is None else lambda _: model_backend
    return load_model(Path(folder), dtype=dtype, device=CPU, max_model_len=512, choose_backend=chosen)


def random_weights(dtype: str, model_backend: ModelBackend | None) -> tuple[CausalLM, DecoderConfig]:
    chosen = None if model_backend is None else lambda _: model_backend
    return random_model(
        SHAPE, seed=3, dtype=dtype, device=CPU, max_model_len=512, scale=0.09, choose_backend=chosen,
        change=lambda _, tensor: tensor.bfloat16().float(),
    )  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A model, and the largest allowed ratio of the divergences of int8 and Q8_0.

    The mean over text of a trained model depends on few tokens. It varies by a tenth between instruction sets, which
    differ in the last bits of sums.
    """

    load: Loaded
    limit: float


KINDS = {"demo": Kind(demo, 1.1), "random": Kind(random_weights, 1.0)}


def distributions(load: Loaded, model_backend: ModelBackend | None, ids: Tensor) -> Tensor:
    """Return the log-probabilities of the token after every token of ids [S, L]: float64 [S * L, V]."""
    is_native = isinstance(model_backend, NativeBackend)
    model, _ = load("bfloat16" if is_native else "float32", model_backend)
    backend = model_backend.attention()() if isinstance(model_backend, NativeBackend) else ReferenceAttention()
    count, length = ids.shape
    blocks = -(-length // 16)
    kv = allocate_kv(backend, model.groups, count * blocks, 16, model.dtype, CPU)
    tables = [tuple(range(first, first + blocks)) for first in range(0, count * blocks, blocks)]
    batch = make_batch([Row(length, length, (table,) * len(model.groups.windows)) for table in tables], 16)
    with torch.inference_mode():
        hidden = model.forward(ids.flatten(), ForwardContext(batch, kv, backend, backend.plan(batch)))
        return model.logits(hidden).double().log_softmax(-1)


def sequences(load: Loaded) -> Tensor:
    """Return ids [S, L] sampled from the float32 model, so that they are likely under it."""
    generator = torch.Generator().manual_seed(5)
    _, config = load("float32", None)
    ids = torch.randint(config.vocab_size, (SEQUENCES, 1), generator=generator)
    while ids.shape[1] < LENGTH:
        last = distributions(load, None, ids).view(SEQUENCES, -1, config.vocab_size)[:, -1]
        ids = torch.cat([ids, torch.multinomial(last.exp(), 1, generator=generator)], 1)
    return ids


def divergence(true: Tensor, other: Tensor) -> float:
    """Return the mean Kullback-Leibler divergence of `other` from `true`, in nats."""
    return float((true.exp() * (true - other)).sum(-1).mean())


@pytest.mark.full
@pytest.mark.parametrize("kind", ["random", "demo"])
def test_groups_are_no_worse_than_q8_0_and_better_than_channels(kind: str) -> None:
    need_native()
    load = KINDS[kind].load
    ids = sequences(load)
    true = distributions(load, None, ids)
    found = {
        name: divergence(true, distributions(load, model_backend, ids))
        for name, model_backend in {
            "bf16": NativeBackend(), "int8": NativeBackend("int8"), "int8-channel": NativeBackend("int8-channel"),
            "q8_0": Q8Backend(Q8Ops()), "int4": NativeBackend("int4"),
        }.items()
    }  # fmt: skip
    assert 0 <= found["int8"] <= KINDS[kind].limit * found["q8_0"], found
    assert found["bf16"] < found["int8"] < found["int8-channel"] < found["int4"] < 0.5, found
