"""The shared decoder: the arguments of the attention backend, the rotation of each layer, the order of its parts."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionSpec, PagedKV
from chairlift.model.attention.kv_pages import allocate_kv
from chairlift.model.attention.reference import ReferenceAttention
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.config.decoder_config import DecoderConfig
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.layers.decoder import TorchDecoder, load_lm_head
from chairlift.model.layers.ops import TorchOps
from chairlift.model.loading.model_building import random_model
from chairlift.model.weights.parameter_loader import ParameterLoader
from support_batches import Row, make_batch
from support_decoder_shape import shape

CPU = torch.device("cpu")
ops = TorchOps()


def made(config: DecoderConfig) -> TorchDecoder:
    model, _ = random_model(config, seed=1, dtype="float64", device=CPU, max_model_len=64)
    assert isinstance(model, TorchDecoder)
    return model


@dataclass
class NotingBackend(ReferenceAttention):
    """The reference backend, which records its arguments."""

    written: list[tuple[int, list[int]]] = field(default_factory=list)
    specs: list[AttentionSpec] = field(default_factory=list)

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        self.written.append((kv.key.data_ptr(), slot_mapping.tolist()))
        super().write_kv(key, value, kv, slot_mapping)

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        self.specs.append(spec)
        super().attend(query, kv, batch, spec, plan, out)


def run(model: TorchDecoder, ids: list[int], backend: NotingBackend) -> tuple[Tensor, list[PagedKV]]:
    blocks = len(model.groups.windows)
    kv = allocate_kv(backend, model.groups, blocks, 8, torch.float64, CPU)
    batch = make_batch([Row(len(ids), len(ids), tuple((group,) for group in range(blocks)))], 8)
    return model.forward(torch.tensor(ids), ForwardContext(batch, kv, backend, backend.plan(batch))), kv


def test_each_layer_writes_to_its_own_place_in_its_own_group() -> None:
    model = made(shape())
    assert model.groups.windows == (3, 3, None)
    assert len(model.groups.caches) == 2
    backend = NotingBackend()
    _, kv = run(model, [1, 2, 3, 4], backend)
    expected = []
    for group, index in model.groups.places:
        expected.append((kv[index].key.data_ptr(), [group * 8 + position for position in range(4)]))
    assert backend.written == expected
    assert len(set(model.groups.places)) == 5


def test_each_layer_names_its_group_window_and_scale() -> None:
    model = made(shape())
    backend = NotingBackend()
    run(model, [1, 2, 3], backend)
    assert [(spec.window, spec.scale) for spec in backend.specs] == [(3, 0.25), (None, 0.25)] * 2 + [(3, 0.25)]
    assert [spec.group for spec in backend.specs] == [group for group, _ in model.groups.places]


def test_sliding_layers_have_the_rotation_of_sliding_layers() -> None:
    ids = [7, 7, 9, 1, 30]
    plain = shape(rope_theta=1e4, rope_local_base_freq=1e4)

    def states(config: DecoderConfig) -> Tensor:
        return run(made(config), ids, NotingBackend())[0]

    assert not torch.allclose(states(plain), states(shape(rope_theta=1e4, rope_local_base_freq=50.0)))
    assert not torch.allclose(states(plain), states(shape(rope_theta=50.0, rope_local_base_freq=1e4)))
    none_slides = replace(plain, layer_windows=(None,) * 5)
    other = replace(none_slides, sliding_rope=replace(plain.sliding_rope, theta=50.0))
    assert torch.equal(states(none_slides), states(other))


def test_logits_are_capped_where_the_config_says() -> None:
    hidden = torch.randn(3, 16, dtype=torch.float64) * 100
    capped, plain = made(shape(final_logit_softcapping=2.0)), made(shape())
    assert torch.allclose(capped.logits(hidden), 2 * torch.tanh(plain.logits(hidden) / 2))
    assert capped.logits(hidden).abs().max() <= 2


def test_the_embedding_of_gemma_is_scaled_in_its_own_dtype() -> None:
    config = shape(hidden_size=3072, num_hidden_layers=1, layer_types=["full_attention"])
    model, _ = random_model(config, seed=1, dtype="bfloat16", device=CPU, max_model_len=4)
    assert isinstance(model, TorchDecoder)
    assert float(model._embed_scale) == 55.5  # type: ignore[arg-type]


def test_a_tied_head_is_the_embedding_itself() -> None:
    table = torch.randn(40, 16)
    taken: list[str] = []

    def take(name: str, wanted: tuple[int, ...]) -> Tensor:
        taken.append(name)
        return torch.randn(wanted)

    assert load_lm_head(ParameterLoader(take), shape(), table) is table
    assert taken == []
    assert load_lm_head(ParameterLoader(take), shape(tie_word_embeddings=False), table).shape == (40, 16)
    assert taken == ["lm_head.weight"]
