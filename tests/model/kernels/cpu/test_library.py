"""The library as Python sees it: structs of the same size, sets that run here, and a word where it is missing."""

import ctypes
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.compile import instruction_set_flags
from support_native import need_native


def test_structs_are_as_large_as_the_library_has_them() -> None:
    need_native()
    kinds = (
        library.Weight, library.StepGroup, library.StepCache, library.Step, library.TruncationStruct, library.HeadRow,
        library.Plan, library.HeadCall,
    )  # fmt: skip
    sizes = (ctypes.c_size_t * len(kinds))()
    library.load().sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(kind) for kind in kinds]


def test_the_best_set_that_runs_here_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    here = library.instruction_sets()
    assert here[-1] == "portable" and set(here) <= set(instruction_set_flags())
    monkeypatch.delenv(library.FORCED_SET, raising=False)
    assert library.selected_instruction_set() == here[0]
    monkeypatch.setenv(library.FORCED_SET, "portable")
    assert library.selected_instruction_set() == "portable"
    monkeypatch.setenv(library.FORCED_SET, "avx1024")
    with pytest.raises(ConfigError, match=f"avx1024.*{here[0]}"):
        library.selected_instruction_set()


def test_a_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.OTHER_LIBRARY, raising=False)
    monkeypatch.setattr(library, "LIBRARY", "not-compiled.so")
    with pytest.raises(ConfigError, match=r"not compiled; install a C\+\+ compiler, then run"):
        library.load.__wrapped__()


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.setenv(library.OTHER_LIBRARY, str(tmp_path / "broken.so"))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        library.load.__wrapped__()
    need_native()
    monkeypatch.setitem(library._SIGNATURES, "of_a_later_version", (None,))
    monkeypatch.delenv(library.OTHER_LIBRARY)
    with pytest.raises(ConfigError, match="of_a_later_version"):
        library.load.__wrapped__()
