"""The ctypes interface: sizes of structs, available instruction sets, errors of a missing or stale library."""

from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.compile import processor_sets
from chairlift.model.kernels.cpu.instruction_sets import instruction_sets
from support_native import need_native


def test_the_library_names_its_sets_and_has_those_of_the_processor() -> None:
    need_native()
    names = library.load().compiled_sets().decode().split()
    assert set(instruction_sets()) == set(names) & set(processor_sets())


def test_a_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(library, "LIBRARY", "not-compiled.so")
    with pytest.raises(ConfigError, match=r"not compiled; install a C\+\+ compiler, then run"):
        library.load.__wrapped__()


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.so").write_bytes(b"no library")
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "broken.so"))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        library.load.__wrapped__()
    need_native()
    monkeypatch.setitem(library._SIGNATURES, "of_a_later_version", (None,))
    monkeypatch.delenv(library.LIBRARY_VARIABLE)
    with pytest.raises(ConfigError, match=r"of_a_later_version.*compile them again"):
        library.load.__wrapped__()
