"""read_gguf: equal to gguf on its own and on a real file; a damaged file is refused in one sentence."""

import os
import random
import re
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from chairlift.core.errors import ModelError, UnsupportedModel
from chairlift.model.config.gguf_file import GGUFFile, is_gguf, read_gguf, split_paths
from support_gguf import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    F32,
    STRING,
    U8,
    U16,
    U32,
    GGUFParts,
    array,
    pair,
    smollm2_file,
    string,
    tensor,
)
from support_shares import FULL

NUM_MUTATIONS = 100_000 if FULL else 3_000


def equals_gguf(mine: GGUFFile, path: Path) -> None:
    """Check metadata and tensors against gguf's reader."""
    reader = gguf.GGUFReader(path)
    theirs = {key: part.contents() for key, part in reader.fields.items() if not key.startswith("GGUF.")}
    assert mine.metadata == theirs
    assert {key: type(value) for key, value in mine.metadata.items()} == {k: type(v) for k, v in theirs.items()}
    tensors = [each for each in mine.tensors.values() if each.file == path]
    assert [each.name for each in tensors] == [each.name for each in reader.tensors]
    for each, other in zip(tensors, reader.tensors, strict=True):
        assert each.shape == tuple(reversed(other.shape.tolist()))
        place = each.type.id, each.offset, each.num_bytes
        assert place == (other.tensor_type.value, other.data_offset, other.n_bytes)


def test_a_real_file_has_the_metadata_and_tensors_that_gguf_reads() -> None:
    path = smollm2_file()
    mine = read_gguf(path)
    equals_gguf(mine, path)
    assert mine.path == path and len(mine.tensors) == 272 and len(mine.metadata) == 33
    assert mine.tensors["blk.0.ffn_up.weight"].shape == (1536, 576)


def written(path: Path, *, split_max_tensors: int = 0, alignment: int = 32) -> Path:
    """Write a file, or split files, with gguf's writer: seven tensors of several types and metadata of every type."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
    writer.add_custom_alignment(alignment)
    writer.add_bool("llama.is_small", True)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "▁a", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 0.0])
    writer.add_array("tokenizer.ggml.token_type", [3, 1, -1])
    writer.add_array("llama.flags", [True, False])
    for value, add in enumerate(
        (
            writer.add_uint8, writer.add_int8, writer.add_uint16, writer.add_int16, writer.add_uint32,
            writer.add_int32, writer.add_uint64, writer.add_int64, writer.add_float32, writer.add_float64,
        )
    ):  # fmt: skip
        add(f"llama.number.{value}", value)
    for index in range(6):
        shape = (2, 3, 4, 5)[-1 - index % 4 :]
        writer.add_tensor(f"blk.{index}.weight", np.full(shape, index, np.float32 if index % 2 else np.float16))
    blocks = np.zeros((3, 2 * 34), np.uint8)
    writer.add_tensor("quantized", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_a_file_of_gguf_s_writer(tmp_path: Path, alignment: int) -> None:
    path = written(tmp_path / "m.gguf", alignment=alignment)
    mine = read_gguf(path)
    equals_gguf(mine, path)
    assert mine.tensors["quantized"].shape == (3, 64)
    part = mine.tensors["blk.5.weight"]
    assert np.fromfile(path, "<f4", 20, offset=part.offset).tolist() == [5.0] * 20


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(tmp_path: Path, version: int) -> None:
    path = GGUFParts(version=struct.pack("<I", version)).write(tmp_path / "m.gguf")
    mine = read_gguf(path)
    assert mine.metadata == {"general.architecture": "llama"}
    assert mine.tensors["a"].offset == 128 and mine.tensors["a"].num_bytes == 32


def split_model(folder: Path) -> list[Path]:
    written(folder / "m.gguf", split_max_tensors=3)
    return split_paths(folder / "m-00001-of-00003.gguf")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_any_of_the_split_files_names_the_model(tmp_path: Path, number: int) -> None:
    whole = read_gguf(written(tmp_path / "whole.gguf"))
    paths = split_model(tmp_path)
    mine = read_gguf(paths[number])
    assert mine.path == paths[0] and all(path.is_file() for path in paths)
    equals_gguf(replace(mine, tensors={n: t for n, t in mine.tensors.items() if t.file == paths[0]}), paths[0])
    assert [(each.name, each.shape, each.type) for each in mine.tensors.values()] == [
        (each.name, each.shape, each.type) for each in whole.tensors.values()
    ]
    assert [each.file for each in mine.tensors.values()] == [paths[0]] * 3 + [paths[1]] * 3 + [paths[2]]
    metadata = {key: value for key, value in mine.metadata.items() if not key.startswith("split.")}
    assert metadata == whole.metadata
    for each in mine.tensors.values():
        original = whole.tensors[each.name]
        assert np.array_equal(
            np.fromfile(each.file, np.uint8, each.num_bytes, offset=each.offset),
            np.fromfile(original.file, np.uint8, original.num_bytes, offset=original.offset),
        )


def refusal(path: Path, kind: type[ModelError] = ModelError) -> str:
    """Return the message with which a file is refused, which is one sentence with the file's name."""
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    assert type(caught.value) is kind
    message = caught.value.message
    assert str(path.parent) in message and "\n" not in message and not message.endswith(".") and ". " not in message
    if kind is UnsupportedModel:
        assert message.endswith(f"; {caught.value.details['remedy']}")
    return message


def test_a_missing_split_file_is_named(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    paths[1].unlink()
    assert refusal(paths[2]) == f"there is no file {paths[1]}, one of the model's 3 split files"
    paths[0].unlink()
    assert refusal(paths[2]) == f"cannot read {paths[0]}: No such file or directory"


def test_split_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    paths = split_model(tmp_path)
    second, third = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(third)
    assert refusal(paths[0]) == f"{paths[1]} has split.no 2 and split.count 3, expected 1 and 3"
    paths[1].write_bytes(paths[0].read_bytes().replace(b"split.no\2\0\0\0\0\0", b"split.no\2\0\0\0\1\0"))
    assert refusal(paths[0]) == f"tensor blk.0.weight is in two files: {paths[0]} and {paths[1]}"
    paths[1].write_bytes(second[:-32])
    assert refusal(paths[0]).startswith(f"{paths[1]} is truncated or damaged: tensor blk.5.weight goes on to byte ")
    paths[1].write_bytes(second.replace(b"blk.5", b"blk.0"))
    assert refusal(paths[0]) == f"tensor blk.0.weight is in two files: {paths[0]} and {paths[1]}"


def split_pairs(number: int, count: int, num_tensors: int) -> list[bytes]:
    return [
        pair("split.no", U16, struct.pack("<H", number)), pair("split.count", U16, struct.pack("<H", count)),
        pair("split.tensors.count", 5, struct.pack("<i", num_tensors)),
    ]  # fmt: skip


def test_split_files_have_as_many_tensors_as_the_first_announces(tmp_path: Path) -> None:
    first, second = split_paths(tmp_path / "m-00001-of-00002.gguf")
    GGUFParts(pairs=[ARCHITECTURE, *split_pairs(0, 2, 3)]).write(first)
    GGUFParts(pairs=split_pairs(1, 2, 3), tensors=[tensor("b", (8,))]).write(second)
    assert refusal(second) == f"{first} announces 3 tensors in 2 files, they have 2"
    GGUFParts(pairs=[ARCHITECTURE, *split_pairs(0, 2, 2)], tensors=[], data=b"").write(first)
    GGUFParts(pairs=split_pairs(1, 2, 2), tensors=[tensor("b", (8,)), tensor("c", (8,), 0, 32)], data=bytes(64)).write(
        second
    )
    assert {name: each.file for name, each in read_gguf(first).tensors.items()} == {"b": second, "c": second}


def test_a_split_file_with_another_name_is_refused(tmp_path: Path) -> None:
    path = GGUFParts(pairs=[ARCHITECTURE, *split_pairs(0, 3, 3)]).write(tmp_path / "m.gguf")
    assert refusal(path).startswith(f"{path} is one of 3 split files, its name says 1; give the files their names back")
    path = path.rename(tmp_path / "m-00001-of-00002.gguf")
    assert refusal(path).startswith(f"{path} is one of 3 split files, its name says 2; ")
    GGUFParts(pairs=split_pairs(1, 2, 2)).write(tmp_path / "m-00002-of-00002.gguf")
    GGUFParts(pairs=[ARCHITECTURE, pair("split.count", U16, struct.pack("<H", 2))]).write(path)
    assert refusal(path) == f"{path} has split.no None and split.count 2, expected 0 and 2"
    GGUFParts().write(path)
    assert refusal(tmp_path / "m-00002-of-00002.gguf").startswith(f"{path} is one of 1 split files, its name says 2; ")
    assert len(read_gguf(path).tensors) == 1  # only the name is that of a split file
    for name in ("m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-1-of-2.gguf"):
        assert split_paths(Path(name)) == [Path(name)]


def test_is_gguf_reads_the_first_bytes(tmp_path: Path) -> None:
    assert is_gguf(GGUFParts().write(tmp_path / "m.bin"))
    (tmp_path / "m.gguf").write_bytes(b"GGU")
    assert not any(map(is_gguf, (tmp_path / "m.gguf", tmp_path, tmp_path / "missing")))


def test_a_missing_file_a_folder_and_another_format(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert refusal(path) == f"cannot read {path}: No such file or directory"
    assert refusal(tmp_path) == f"cannot read {tmp_path}: Is a directory"
    for content in (b"", b"GGU", b"ggjt\3\0\0\0", b"GGML" + bytes(100)):
        path.write_bytes(content)
        assert refusal(path) == f"{path} is not a GGUF file: it does not begin with the bytes GGUF"


def alignment(value: int) -> bytes:
    return pair("general.alignment", U32, struct.pack("<I", value))


TWO = [tensor("a", (8,)), tensor("b", (8,), 0, 32)]
INVALID = [
    (GGUFParts(pairs=[]), "the metadata has no name of an architecture in general.architecture"),
    (GGUFParts(pairs=[pair("general.architecture", U8, b"\1")]), "no name of an architecture"),
    (GGUFParts(pairs=[pair("general.architecture", STRING, string(""))]), "no name of an architecture"),
    (GGUFParts(pairs=[ARCHITECTURE, ARCHITECTURE]), "the metadata has two keys general.architecture"),
    (GGUFParts(pairs=[ARCHITECTURE, pair(b"\xff", U8, b"\0")]), "key 1 of the metadata has a string that is not UTF-8"),
    (GGUFParts(pairs=[ARCHITECTURE, pair("a\nb", BOOL, b"\2")]), r"the value of 'a\nb' has a bool of 2"),
    (GGUFParts(pairs=[ARCHITECTURE, pair("x", STRING, string(b"\x80"))]), "the value of x has a string that is not"),
    (GGUFParts(pairs=[ARCHITECTURE, pair("x", 13, b"")]), "the value of x has a value of type 13"),
    *((GGUFParts(pairs=[ARCHITECTURE, alignment(value)]), f"general.alignment is {value}, not a power of two")
      for value in (0, 1, 4, 24, 2**32 - 1)),
    (GGUFParts(pairs=[ARCHITECTURE, pair("general.alignment", F32, struct.pack("<f", 32))]), "alignment is 32.0, not"),
    (GGUFParts(pairs=[ARCHITECTURE, pair("general.alignment", BOOL, b"\1")]), "general.alignment is True, not"),
    (GGUFParts(pairs=[ARCHITECTURE, pair("general.alignment", ARRAY, array(U8, 1, b"\x20"))]), "is a list, not"),
    (GGUFParts(tensors=[tensor("a", ())], num_tensors=1), "tensor a has 0 dimensions, valid are 1 to 4"),
    (GGUFParts(tensors=[tensor("a", (1, 1, 1, 1, 8))]), "tensor a has 5 dimensions, valid are 1 to 4"),
    (GGUFParts(tensors=[tensor("a", (8, 0))]), "tensor a has shape (0, 8), whose dimensions must be positive"),
    (GGUFParts(tensors=[tensor(b"\xc3", (8,))]), "the description of tensor 0 has a string that is not UTF-8"),
    (GGUFParts(tensors=[tensor("a", (48,), 2)]), "tensor a has rows of 48 elements, not a multiple of the 32"),
    (GGUFParts(tensors=[tensor("a", (8,), 0, 16)]), "tensor a has offset 16, not a multiple of the alignment 32"),
    (GGUFParts(tensors=[TWO[0], tensor("a", (8,), 0, 32)], data=bytes(64)), "it has two tensors a"),
    (GGUFParts(tensors=[TWO[0], tensor("b", (8,))]), "the data of tensors a and b overlap"),
    (GGUFParts(tensors=[tensor("b", (8,), 0, 32), tensor("a", (9,))], data=bytes(64)), "tensors a and b overlap"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "problem"), INVALID)
def test_an_invalid_file_is_refused_with_the_reason(tmp_path: Path, parts: GGUFParts, problem: str) -> None:
    path = parts.write(tmp_path / "m.gguf")
    message = refusal(path)
    assert message.startswith(f"{path} is not a valid GGUF file: ") and problem in message


BEYOND = [
    (GGUFParts(num_tensors=2**63), "the header announces 9223372036854775808 tensors, at least "),
    (GGUFParts(num_tensors=2**64 - 1), "the header announces 18446744073709551615 tensors, at least "),
    (GGUFParts(num_pairs=2**63), "the header announces 9223372036854775808 pairs of metadata, at least "),
    (GGUFParts(data=bytes(31)), "tensor a goes on to byte 160, and the file has 159 bytes"),
    (GGUFParts(tensors=[tensor("a", (8,), 0, 2**63)]), "tensor a goes on to byte 9223372036854775968, and the file"),
    (GGUFParts(tensors=[tensor("a", (2**64 - 1,) * 4)]), "tensor a goes on to byte 4"),
    (GGUFParts(tensors=TWO, data=bytes(63)), "tensor b goes on to byte "),
    (GGUFParts(pairs=[ARCHITECTURE, struct.pack("<Q", 2**63)]), "key 1 of the metadata goes on to byte 92233720368547"),
    (GGUFParts(pairs=[ARCHITECTURE, pair("x", ARRAY, array(STRING, 2**63, b""))]), "the value of x announces 9223372"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "problem"), BEYOND)
def test_what_exceeds_the_file_is_refused(tmp_path: Path, parts: GGUFParts, problem: str) -> None:
    path = parts.write(tmp_path / "m.gguf")
    assert refusal(path).startswith(f"{path} is truncated or damaged: {problem}")


def kind_of_file(key: str, kind: str) -> GGUFParts:
    pairs = [ARCHITECTURE] if key == "general.type" else []
    return GGUFParts(pairs=[*pairs, pair(key, STRING, string(kind))], tensors=[tensor("a", (8,), 10)])


UNSUPPORTED = [
    (GGUFParts(version=struct.pack(">I", 3)), "{} is a big-endian GGUF file, which is not supported"),
    (GGUFParts(version=struct.pack("<I", 1)), "{} is a GGUF file of version 1, which is not supported; convert the"),
    (GGUFParts(version=struct.pack("<I", 0)), "{} is a GGUF file of version 0, which is not supported"),
    (GGUFParts(version=struct.pack("<I", 4)), "{} is a GGUF file of version 4, which is not supported"),
    (GGUFParts(tensors=[tensor("a", (8,), 16)]),
     "tensor a in {} has type IQ2_XXS, which is not supported; take the model's file of type Q4_K_M or Q8_0"),
    (GGUFParts(tensors=[tensor("a", (8,), 10)]), "tensor a in {} has type Q2_K, which is not supported"),
    (GGUFParts(tensors=[tensor("a", (8,), 99)]), "tensor a in {} has type 99, which this version of Chairlift"),
    (kind_of_file("general.architecture", "clip"),
     "{} is the vision part of a model; name the file of the model itself"),
    (kind_of_file("general.type", "mmproj"), "{} is the vision part of a model; name"),
    (kind_of_file("general.type", "imatrix"), "{} is calibration data for quantization, not a model; name"),
    (kind_of_file("general.architecture", "imatrix"), "{} is calibration data for quantization, not a model; name"),
    (kind_of_file("general.type", "adapter"), "{} is a LoRA adapter, not a model; name the file"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "problem"), UNSUPPORTED)
def test_an_unsupported_file_is_refused_with_a_remedy(tmp_path: Path, parts: GGUFParts, problem: str) -> None:
    path = parts.write(tmp_path / "m.gguf")
    assert refusal(path, UnsupportedModel).startswith(problem.format(path))


def test_a_big_endian_file_of_gguf_s_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "is a big-endian GGUF file" in refusal(path, UnsupportedModel)


@pytest.fixture
def memory_file() -> Iterator[Path]:
    """A file without a disk, since to map a file that was just written takes a disk milliseconds."""
    opened = os.memfd_create("m.gguf")
    yield Path(f"/proc/self/fd/{opened}")
    os.close(opened)


def test_a_file_truncated_at_any_byte_is_refused(tmp_path: Path, memory_file: Path) -> None:
    whole = written(tmp_path / "whole.gguf").read_bytes()
    path = memory_file
    for length in range(4, len(whole)):
        path.write_bytes(whole[:length])
        if length >= len(whole) - 32 and not any(whole[length:]):
            continue  # the padding behind the last tensor may be missing
        assert refusal(path).startswith(f"{path} is truncated or damaged: ")


def mutated(data: bytes, header_bytes: int, choose: random.Random) -> bytes:
    """Return the file with up to four changed bytes in its header, sometimes shortened."""
    changed = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(4, header_bytes)
        changed[at] = choose.choice(
            (0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 1 << choose.randrange(8), choose.randrange(256))
        )
    if choose.random() < 0.1:
        del changed[choose.randrange(4, len(changed)) :]
    return bytes(changed)


def test_mutated_headers_are_read_or_refused_within_little_memory(tmp_path: Path, memory_file: Path) -> None:
    data = written(tmp_path / "whole.gguf").read_bytes()
    path, size = memory_file, len(data)
    header_bytes = min(each.offset for each in read_gguf(tmp_path / "whole.gguf").tensors.values())
    choose, num_read = random.Random(1), 0
    tracemalloc.start()
    try:
        for _ in range(NUM_MUTATIONS):
            path.write_bytes(mutated(data, header_bytes, choose))
            try:
                mine = read_gguf(path)
            except ModelError as error:
                message = error.message
                assert str(path) in message and message.isprintable() and not message.endswith("."), message
                assert len(message) < 500, message
            else:
                num_read += 1
                for each in mine.tensors.values():
                    assert header_bytes // 2 < each.offset and each.offset + each.num_bytes <= size
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert NUM_MUTATIONS // 20 < num_read < NUM_MUTATIONS


@pytest.mark.parametrize("kind", [U8, STRING, ARRAY])
def test_the_memory_of_a_valid_header_is_a_small_multiple_of_the_file(tmp_path: Path, kind: int) -> None:
    element = {U8: b"\xff", STRING: string("ab"), ARRAY: array(U8, 0, b"")}[kind]
    count = 400_000 // len(element)
    path = GGUFParts(pairs=[ARCHITECTURE, pair("x", ARRAY, array(kind, count, element * count))]).write(tmp_path / "m")
    tracemalloc.start()
    try:
        assert len(read_gguf(path).metadata["x"]) == count  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 20 * path.stat().st_size
    finally:
        tracemalloc.stop()


def test_a_vocabulary_of_150_000_tokens_is_read(tmp_path: Path) -> None:
    tokens = b"".join(string(f"token{number}") for number in range(150_000))
    merges = b"".join(string(f"tok en{number}") for number in range(150_000))
    path = GGUFParts(
        pairs=[
            ARCHITECTURE, pair("tokenizer.ggml.tokens", ARRAY, array(STRING, 150_000, tokens)),
            pair("tokenizer.ggml.merges", ARRAY, array(STRING, 150_000, merges)),
            pair("tokenizer.ggml.scores", ARRAY, array(F32, 150_000, bytes(600_000))),
        ]
    ).write(tmp_path / "m.gguf")  # fmt: skip
    mine = read_gguf(path)
    assert mine.metadata["tokenizer.ggml.tokens"][149_999] == "token149999"  # type: ignore[index]


def test_no_module_of_the_package_imports_gguf() -> None:
    source = Path(__file__).parents[3] / "src"
    pattern = re.compile(r"^\s*(import gguf|from gguf)\b", re.MULTILINE)
    assert not [path for path in source.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
