"""The ctypes interface: sizes of structs, available instruction sets, errors of a missing or stale library."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import library
from chairlift.model.kernels.cpu.compile import instruction_set_flags, processor_sets
from support_native import need_native


def test_the_best_set_that_runs_here_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    available = library.instruction_sets()
    assert available[-1] == "portable" and set(available) <= set(instruction_set_flags())
    monkeypatch.delenv(library.INSTRUCTION_SET_VARIABLE, raising=False)
    assert library.selected_instruction_set() == available[0]
    monkeypatch.setenv(library.INSTRUCTION_SET_VARIABLE, "portable")
    assert library.selected_instruction_set() == "portable"
    monkeypatch.setenv(library.INSTRUCTION_SET_VARIABLE, "avx1024")
    with pytest.raises(ConfigError, match=f"avx1024.*{available[0]}"):
        library.selected_instruction_set()


def test_the_library_names_its_sets_and_has_those_of_the_processor() -> None:
    need_native()
    names = library.load().compiled_sets().decode().split()
    assert set(library.instruction_sets()) == set(names) & set(processor_sets())


def test_a_library_of_another_machine_is_said_to_be_slower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "load", lambda: SimpleNamespace(compiled_sets=lambda: b"compiled sets: avx2 portable"))
    monkeypatch.setattr(library, "instruction_sets", lambda: ("avx2", "portable"))
    for sets, said in (
        (("avx2", "portable"), ""),
        (("avx512", "avx2", "portable"), "without avx512: they run with avx2"),
    ):
        monkeypatch.setattr(library, "processor_sets", lambda sets=sets: sets)
        library.warn_of_missing_sets.__wrapped__()
        assert said in caplog.text and bool(said) == bool(caplog.text)


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
