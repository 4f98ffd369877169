"""selected_instruction_set: the best that runs here, or the variable's; a library without the best is logged."""

from types import SimpleNamespace

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import instruction_sets
from chairlift.model.kernels.cpu.compile import instruction_set_flags
from support_native import need_native


def test_the_best_set_that_runs_here_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    available = instruction_sets.instruction_sets()
    assert available[-1] == "portable" and set(available) <= set(instruction_set_flags())
    monkeypatch.delenv(instruction_sets.INSTRUCTION_SET_VARIABLE, raising=False)
    assert instruction_sets.selected_instruction_set() == available[0]
    monkeypatch.setenv(instruction_sets.INSTRUCTION_SET_VARIABLE, "portable")
    assert instruction_sets.selected_instruction_set() == "portable"
    monkeypatch.setenv(instruction_sets.INSTRUCTION_SET_VARIABLE, "avx1024")
    with pytest.raises(ConfigError, match=f"avx1024.*{available[0]}"):
        instruction_sets.selected_instruction_set()


def test_a_library_of_another_machine_is_said_to_be_slower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = SimpleNamespace(compiled_sets=lambda: b"compiled sets: avx2 portable")
    monkeypatch.setattr(instruction_sets, "load", lambda: library)
    monkeypatch.setattr(instruction_sets, "instruction_sets", lambda: ("avx2", "portable"))
    for sets, said in (
        (("avx2", "portable"), ""),
        (("avx512", "avx2", "portable"), "without avx512: they run with avx2"),
    ):
        monkeypatch.setattr(instruction_sets, "processor_sets", lambda sets=sets: sets)
        instruction_sets.warn_of_missing_sets.__wrapped__()
        assert said in caplog.text and bool(said) == bool(caplog.text)
