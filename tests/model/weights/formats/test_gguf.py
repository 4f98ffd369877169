"""The format GGUF: numbers of whole tensors, of parts and of chunks, orders of rows, damaged scales, fingerprints."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.architectures.config_parsing import read_decoder_config
from chairlift.model.config.gguf_file import GGUFTensor, read_gguf
from chairlift.model.config.gguf_folder import gguf_folder
from chairlift.model.config.gguf_types import TYPES_BY_NAME
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.kernels.cpu.weight_kinds import BLOCK_KINDS
from chairlift.model.loading.model_building import parameter_shapes
from chairlift.model.weights.checkpoint import Checkpoint
from chairlift.model.weights.checkpoint_fingerprint import fingerprint
from chairlift.model.weights.formats import dense_rows, gguf
from chairlift.model.weights.formats.registry import format_of, is_safetensors
from chairlift.model.weights.gguf_blocks import dequantize
from support_gguf import random_blocks
from support_gguf_models import write_gguf
from support_native import need_native
from support_shares import FULL

QUERY, DOWN, NORM = (
    f"model.layers.1.{name}.weight" for name in ("self_attn.q_proj", "mlp.down_proj", "input_layernorm")
)  # fmt: skip
MIX = {"token_embd": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q5_1", "ffn_down": "BF16", "ffn_up": "F16"}


def mixed(name: str) -> str:
    return MIX.get(name.split(".")[-2], "Q4_0")


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Any]:
    model = write_gguf(tmp_path / "a.gguf", "llama", mixed, tie_word_embeddings=True)
    return gguf_folder(tmp_path / "a.gguf"), model


def test_every_number_is_that_of_the_file(written: tuple[Path, Any]) -> None:
    folder, model = written
    assert format_of(folder) is gguf and not is_safetensors(folder)
    checkpoint = Checkpoint.open(folder, "LlamaForCausalLM")
    expected = dict(model.named_parameters())
    assert checkpoint.tensors.keys() == expected.keys()
    for name, numbers in expected.items():
        stored = checkpoint.tensors[name]
        assert torch.equal(checkpoint.read(name).double(), numbers), name
        assert stored.shape == tuple(numbers.shape) and stored.file.name == "a.gguf"
    assert checkpoint.stored_types() == "Q4_0 38%, Q4_K 15%, F16 15%, BF16 15%, Q6_K 9%, Q5_1 8%, F32 <1%"
    assert (checkpoint.tensors[QUERY].dtype, checkpoint.tensors[QUERY].dense_dtype) == ("Q4_K", "float32")
    assert (checkpoint.tensors[DOWN].dtype, checkpoint.tensors[DOWN].dense_dtype) == ("BF16", "bfloat16")


@pytest.mark.parametrize("elements", [1, 300, 2**22])
@pytest.mark.parametrize("name", [QUERY, DOWN])
def test_parts_and_chunks_have_the_same_numbers(
    written: tuple[Path, Any], name: str, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense_rows, "CHUNK_ELEMENTS", elements)
    folder, model = written
    stored, expected = Checkpoint.open(folder, "LlamaForCausalLM").tensors[name], dict(model.named_parameters())[name]
    part = (slice(60, 133), slice(7, 90))
    assert torch.equal(stored.dense(part).double(), expected[part])
    assert torch.equal(stored.dense(None, torch.bfloat16), expected.bfloat16())
    assert torch.equal(stored.dense((slice(5, 5), slice(0, 256))).double(), expected[5:5])


def test_a_vector_has_parts_too_and_norms_of_gemma_lack_the_one_that_files_add(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "gemma3", mixed)
    stored = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), "Gemma3ForCausalLM").tensors[NORM]
    expected = dict(model.named_parameters())[NORM]
    assert torch.equal(stored.dense().double(), expected)
    assert torch.equal(stored.dense((slice(3, 9),)).double(), expected[3:9])


def test_a_scale_that_is_not_finite_is_named(written: tuple[Path, Any], tmp_path: Path) -> None:
    stored = Checkpoint.open(written[0], "LlamaForCausalLM").tensors[QUERY]
    data = bytearray((tmp_path / "a.gguf").read_bytes())
    data[stored.tensor.offset : stored.tensor.offset + 2] = np.float16(np.inf).tobytes()  # type: ignore[attr-defined]
    (tmp_path / "a.gguf").write_bytes(data)
    damaged = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), "LlamaForCausalLM").tensors[QUERY]
    with pytest.raises(ModelError, match=r"attn_q\.weight.*infinite or not a number"):
        damaged.dense()


def test_a_tensor_that_the_architecture_does_not_have_is_refused(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "qwen3", mixed)
    data = (tmp_path / "a.gguf").read_bytes().replace(b"blk.0.attn_k_norm", b"blk.0.attn_x_norm")
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(UnsupportedModel, match="attn_x_norm"):
        Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), model.config.architectures[0])


def test_a_fingerprint_changes_with_the_numbers_and_not_with_the_time(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", mixed)
    first = fingerprint(gguf_folder(tmp_path / "a.gguf"), "bfloat16 none")
    data = bytearray((tmp_path / "a.gguf").read_bytes())
    (tmp_path / "a.gguf").write_bytes(data)
    assert fingerprint(gguf_folder(tmp_path / "a.gguf"), "bfloat16 none") == first
    stored = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), "LlamaForCausalLM").tensors[DOWN]
    data[stored.tensor.offset] ^= 1  # type: ignore[attr-defined]
    (tmp_path / "a.gguf").write_bytes(data)
    assert fingerprint(gguf_folder(tmp_path / "a.gguf"), "bfloat16 none") != first


def test_a_vector_may_have_any_type(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "a.gguf", "llama-bias", mixed, vector_type="Q8_0")
    checkpoint = Checkpoint.open(gguf_folder(tmp_path / "a.gguf"), "LlamaForCausalLM")
    assert checkpoint.tensors[NORM].dtype == "Q8_0"
    for name, numbers in model.named_parameters():
        assert torch.equal(checkpoint.read(name).double(), numbers), name
    bias = QUERY.replace("weight", "bias")
    expected = dict(model.named_parameters())[bias]
    assert torch.equal(checkpoint.tensors[bias].dense((slice(3, 70),)).double(), expected[3:70])


def test_mutated_files_are_models_or_one_sentence(tmp_path: Path) -> None:
    """Every byte of the header may be another one: the whole way to the numbers ends with them or with a ModelError.

    Blocks that can be read can be packed.
    """
    need_native()
    packer = Packer(get_thread_pool(1), library.INT8_GROUP)
    write_gguf(tmp_path / "a.gguf", "llama", mixed, num_hidden_layers=1)
    messages: list[str] = []
    whole = (tmp_path / "a.gguf").read_bytes()
    end = min(tensor.offset for tensor in read_gguf(tmp_path / "a.gguf").tensors.values())
    dice, texts = random.Random(1), range(whole.index(b"tokenizer.ggml.tokens"), whole.index(b"token_embd.weight"))
    places = [place for place in range(end) if place not in texts]
    for _ in range(100_000 if FULL else 300):
        data = bytearray(whole)
        for place in dice.sample(places, dice.choice([1, 1, 2, 5])):
            data[place] = dice.choice([0, 1, 3, 255, dice.randrange(256)])
        (tmp_path / "a.gguf").write_bytes(data)
        try:
            folder = gguf_folder(tmp_path / "a.gguf")
            config = read_decoder_config(folder)
            shapes = parameter_shapes(config)
            checkpoint = Checkpoint.open(folder, config.architecture)
            checkpoint.check(shapes)
            for name in shapes:
                checkpoint.read(name)
                if checkpoint.tensors[name].codes_type in BLOCK_KINDS:
                    _, damaged = packer.pack_blocks([checkpoint.tensors[name].codes()])
                    assert damaged == (0,), "reading the numbers finds the same damage"
        except ModelError as error:
            messages.append(error.message)
    assert len(messages) > 50 and not [message for message in messages if "\n" in message or len(message) > 1000]


@pytest.mark.parametrize("kind", ["Q4_K", "MXFP4", "F16"])
def test_stacked_experts_are_matrices_with_codes_of_their_own(tmp_path: Path, kind: str) -> None:
    of_kind, path = TYPES_BY_NAME[kind], tmp_path / "a.gguf"
    if kind == "F16":
        rows = np.random.default_rng(3).standard_normal((15, 256)).astype("<f2").view(np.uint8)
    else:
        rows = random_blocks(of_kind, 15, 256 // of_kind.block_size, seed=3)
    path.write_bytes(bytes(64) + rows.tobytes())
    tensor = GGUFTensor("blk.0.ffn_gate_exps.weight", (3, 5, 256), of_kind, path, 64, rows.nbytes)
    stacked = gguf.GGUFWeight(tensor, None, 0.0, gguf.MappedFile(path))
    whole = torch.from_numpy(dequantize(rows, of_kind)).view(3, 5, 256)
    experts = gguf.expert_weights(stacked, 3)
    assert experts is not None
    assert list(experts) == [f"model.layers.0.mlp.experts.{index}.gate_proj.weight" for index in range(3)]
    for index, expert in enumerate(experts.values()):
        assert expert.shape == (5, 256) and expert.name == tensor.name
        assert torch.equal(expert.dense().float(), whole[index])
        assert torch.equal(expert.dense((slice(1, 4), slice(30, 200))).float(), whole[index, 1:4, 30:200])
        assert expert.codes_type == (None if kind == "F16" else kind)
        if expert.codes_type is not None:
            codes = expert.codes()
            assert codes.shape == (5, 256) and np.array_equal(codes.rows, rows[5 * index : 5 * index + 5])


def test_joined_gates_and_ups_vectors_and_single_tensors_of_experts(tmp_path: Path) -> None:
    path, numbers = tmp_path / "a.gguf", torch.arange(2.0 * 6 * 4)
    path.write_bytes(numbers.numpy().tobytes())

    def found(name: str, *shape: int, experts: int = 2) -> dict[str, Any] | None:
        tensor = GGUFTensor(name, shape, TYPES_BY_NAME["F32"], path, 0, 4 * math.prod(shape))
        weights = gguf.expert_weights(gguf.GGUFWeight(tensor, None, 0.0, gguf.MappedFile(path)), experts)
        return None if weights is None else {key: each.dense() for key, each in weights.items()}

    joined = found("blk.1.ffn_gate_up_exps.weight", 2, 6, 4)
    assert joined is not None and len(joined) == 4
    assert torch.equal(joined["model.layers.1.mlp.experts.1.gate_proj.weight"], numbers.view(4, 3, 4)[2])
    biases = found("blk.1.ffn_down_exps.bias", 2, 6)
    assert biases is not None
    assert biases["model.layers.1.mlp.experts.1.down_proj.bias"].tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    gate = found("blk.1.ffn_gate_inp_shexp.weight", 8)
    assert gate is not None and gate["model.layers.1.mlp.shared_expert_gate.weight"].shape == (1, 8)
    router = found("blk.1.ffn_gate_inp.weight", 2, 8)
    assert router is not None and router["model.layers.1.mlp.gate.weight"].shape == (2, 8)
    assert found("blk.1.ffn_gate.weight", 2, 8) is None
    for experts, shape in ((3, (2, 6, 4)), (2, (2, 5, 4))):
        with pytest.raises(ModelError, match=rf"{experts} experts were expected"):
            found("blk.1.ffn_gate_up_exps.weight", *shape, experts=experts)
