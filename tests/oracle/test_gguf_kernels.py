"""Models of GGUF files by the native kernels, which multiply by the codes of the file, against float64."""

import gc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from chairlift.core.errors import ModelError
from chairlift.model.runner.model_facts import model_facts
from support_gguf_models import MIXES, write_gguf
from support_models import VOCAB_SIZE
from support_native_models import BATCH, load_native, logits, relative_error


@pytest.mark.share(8)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("kind", ["llama", "llama-bias", "qwen2", "qwen3", "gemma3"])
def test_codes_are_multiplied_without_their_numbers(kind: str, mix: str, tmp_path: Path) -> None:
    """Only the inputs of products are rounded, to 8 bits; a matrix or rows in the wrong place have an error of 1."""
    model = write_gguf(tmp_path / "a.gguf", kind, MIXES[mix], tie_word_embeddings="tied" in mix or kind == "gemma3")
    loaded = load_native(tmp_path / "a.gguf")
    has_codes = mix not in ("F32", "F16", "BF16")
    assert (loaded.kept is not None) == has_codes
    assert relative_error(loaded, model) < (0.1 if has_codes else 1e-5)
    dequantized = load_native(tmp_path / "a.gguf", quantization="none")
    assert dequantized.kept is None and relative_error(dequantized, model) < 1e-5


def test_a_request_has_the_same_bits_in_any_batch_and_in_any_chunks(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", MIXES["Q4_K_M"])
    loaded = load_native(tmp_path / "a.gguf")
    together = logits(loaded, BATCH)
    for found, ids in zip(together, BATCH, strict=True):
        assert torch.equal(logits(loaded, [ids], max_chunk=64)[0], found)


def test_numbers_and_codes_are_mixed_in_one_model(tmp_path: Path) -> None:
    """Keys without codes: the whole of q, k and v is dequantized. A pair of gates of two types is, too."""
    types = {"attn_k": "F16", "ffn_up": "Q8_0", "ffn_down": "BF16"}
    model = write_gguf(tmp_path / "a.gguf", "qwen3", lambda name: types.get(name.split(".")[-2], "Q4_0"))
    loaded = load_native(tmp_path / "a.gguf")
    assert loaded.kept is not None and loaded.kept[0] == "Q4_0"
    assert relative_error(loaded, model) < 0.1


@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 32), (3, 32), (2, 48)])
def test_a_last_segment_that_does_not_fill_a_panel(kv_heads: int, head_dim: int, tmp_path: Path) -> None:
    """Its padding is stored behind the row, and not at the beginning of the next one."""
    write_gguf(
        tmp_path / "a.gguf", "llama", lambda name: "Q4_0" if "attn_k" in name else "Q8_0", head_dim=head_dim,
        num_attention_heads=4 * kv_heads, num_key_value_heads=kv_heads, hidden_size=128 * kv_heads,
    )  # fmt: skip
    mixed = load_native(tmp_path / "a.gguf")
    for ids in ([5, 7], BATCH[1]):
        together = logits(mixed, [ids, BATCH[1][:3], BATCH[2]], max_chunk=64)[0]
        alone = torch.cat([logits(mixed, [ids[: count + 1]], max_chunk=1)[0][-1:] for count in range(len(ids))])
        assert torch.equal(together, alone)


def test_the_identifier_says_whether_codes_are_kept(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", MIXES["Q8_0"])

    def model_id(**options: Any) -> str:
        return load_native(tmp_path / "a.gguf", **options).model_id

    kept, dense = model_id(), model_id(quantization="none")
    assert kept != dense and model_id(kernels="torch") == model_id(kernels="torch", quantization="none") == dense


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_start_reads_packed_codes(dtype: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "llama", MIXES["Q4_K_M"])
    options = {"dtype": dtype, "packed_weights_dir": str(tmp_path / "packed")}
    first = load_native(tmp_path / "a.gguf", **options)
    (packed,) = (tmp_path / "packed").iterdir()
    written = packed.stat().st_mtime_ns
    again = load_native(tmp_path / "a.gguf", **options)
    assert again.kept == first.kept and packed.stat().st_mtime_ns == written
    assert all(torch.equal(one, other) for one, other in zip(logits(first, BATCH), logits(again, BATCH), strict=True))


@pytest.mark.parametrize("parameter", ["token_embd.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight"])
def test_a_damaged_scale_ends_in_an_error_that_names_the_tensor(parameter: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, "qwen3", MIXES["Q8_0"])
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == parameter)
    with path.open("r+b") as file:
        file.seek(int(tensor.data_offset) + 34)  # the scale of the second block
        file.write(np.float16(np.inf).tobytes())
    with pytest.raises(ModelError, match=rf"{parameter}.*scale"):
        load_native(path)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("options", [{"model_impl": "transformers", "kernels": "auto"}, {}, {"kernels": "torch"}])
def test_no_file_stays_mapped(options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """A file that is replaced or cut would change the model or end the process."""
    write_gguf(tmp_path / "a.gguf", "llama", MIXES[kind])
    loaded = load_native(tmp_path / "a.gguf", **options)
    gc.collect()
    assert str(tmp_path / "a.gguf") not in Path("/proc/self/maps").read_text() and loaded.model_id


def test_the_report_and_the_bytes_name_what_was_dequantized(tmp_path: Path) -> None:
    """A gate whose two weights have different types, and keys without codes beside queries and values with codes."""
    types = {"ffn_gate": "Q8_0", "attn_k": "F16", "token_embd": "F16"}
    write_gguf(tmp_path / "a.gguf", "qwen3", lambda name: types.get(name.split(".")[-2], "Q4_0"),
               tie_word_embeddings=False)  # fmt: skip
    loaded = load_native(tmp_path / "a.gguf")
    dequantized = 2 * 256 * (2 * 256 + 256 + 128)  # of two layers: gate and up, queries and values
    share = dequantized / (dequantized + 2 * 2 * 256 * 256 + 256 * VOCAB_SIZE)
    assert f"weights: Q4_0, float32 {share:.0%} (of several types in one product)" in dict(loaded.report)["kernels"]
    facts = model_facts(loaded.weights_config, "auto", loaded.kept)
    assert loaded.kept is not None and facts.quantization == "Q4_0"
    assert facts.weight_bytes > loaded.kept.num_bytes + 4 * 256 * VOCAB_SIZE, "the table and the norms, too"
