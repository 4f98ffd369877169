"""PackedWeightCache: a second start reads the weights that the first one packed. Any other file is ignored."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.packing import LAYOUT, PackedWeight, Packer
from chairlift.model.kernels.cpu.threads import get_thread_pool
from chairlift.model.weights import packed_weight_cache
from chairlift.model.weights.packed_weight_cache import PackedWeightCache
from chairlift.model.weights.parameter_loader import ParameterLoader, Part
from support_native import need_native

REQUESTS: list[tuple[tuple[Part, ...], bool]] = [
    ((("table", (130, 70)),), False),
    ((("q", (20, 70)), ("k", (10, 70))), False),
    ((("gate", (40, 70)), ("up", (40, 70))), True),
]


class Source:
    """A checkpoint that records the names of the parameters it reads."""

    def __init__(self, seed: int = 0) -> None:
        self.read: list[str] = []
        self._seed = seed

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.read.append(name)
        generator = torch.Generator().manual_seed(self._seed + sum(name.encode()))
        return torch.randn(shape, generator=generator).bfloat16()


def load_weights(
    path: Path | None,
    source: Source,
    kind: int = library.BFLOAT16,
    requests: Sequence[tuple[tuple[Part, ...], bool]] = (),
) -> tuple[PackedWeightCache, list[PackedWeight]]:
    need_native()
    store = PackedWeightCache(Packer(get_thread_pool(2), kind), path)
    weights = [store(parts, ParameterLoader(source), gated=gated) for parts, gated in requests or REQUESTS]
    store.finish()
    return store, weights


def same(one: Sequence[PackedWeight], other: Sequence[PackedWeight]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for left, right in pairs for a, b in zip(left.memory, right.memory, strict=True))


@pytest.mark.parametrize("kind", [library.BFLOAT16, library.INT8_CHANNEL, library.INT8_GROUP])
def test_a_second_start_reads_no_checkpoint(kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weight_cache, "READ_BYTES", 1000)
    path = tmp_path / "new" / "weights"
    first, again = Source(), Source()
    one, packed = load_weights(path, first, kind)
    other, read = load_weights(path, again, kind)
    assert first.read == ["table", "q", "k", "gate", "up"] and again.read == []
    assert same(packed, read) and one.errors == other.errors
    assert list(one.errors) == ([] if kind == library.BFLOAT16 else ["table", "q + k", "gate + up"])
    assert [each.struct.panels for each in packed] == [each.struct.panels for each in read]
    assert os.listdir(path.parent) == ["weights"], "no unfinished file is left"


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    source = Source()
    load_weights(None, source)
    assert len(source.read) == 5 and not list(tmp_path.iterdir())


def test_errors_are_reported_by_weight() -> None:
    store, _ = load_weights(None, Source(), library.INT8_GROUP)
    assert all(0.001 < error < 0.01 for error in store.errors.values()) and len(store.errors) == 3


@pytest.mark.parametrize("how", ["cut", "empty", "other", "header", "kind", "layout", "folder"])
def test_a_file_that_does_not_fit_is_passed_over_and_written_again(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "weights"
    _, packed = load_weights(path, Source())
    whole = path.read_bytes()
    if how == "kind":
        load_weights(path, Source(), library.INT8_GROUP)
    elif how == "layout":
        with monkeypatch.context() as patch:
            patch.setattr(packed_weight_cache, "LAYOUT", LAYOUT + 1)
            load_weights(path, Source())
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({
            "cut": whole[: len(whole) // 2], "empty": b"", "other": b"\x00" * 10_000,
            "header": whole[:8] + b"\xff" * 8 + whole[16:],
        }[how])  # fmt: skip
    source = Source()
    with caplog.at_level(logging.WARNING, logger="chairlift"):
        _, read = load_weights(path, source)
    assert len(source.read) == 5 and same(packed, read)
    assert how == "kind" or "packed weights" in caplog.text  # a weight of another kind is packed without a word
    if how != "folder":
        assert path.read_bytes() == whole


def test_what_another_program_would_ask_for_is_packed_anew(tmp_path: Path) -> None:
    """An update of Chairlift may join other parameters. The weights before the first other request are still read."""
    path, source = tmp_path / "weights", Source()
    load_weights(path, Source())
    other = [REQUESTS[0], ((("q", (20, 70)),), False), ((("k", (10, 70)),), False)]
    _, read = load_weights(path, source, requests=other)
    assert source.read == ["q", "k"]
    again = Source()
    assert same(read, load_weights(path, again, requests=other)[1]) and again.read == []


def test_a_folder_that_cannot_be_written_is_not_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    source = Source()
    _, packed = load_weights(tmp_path / "file" / "weights", source)
    assert same(packed, load_weights(None, Source())[1]) and "cannot be" in caplog.text
