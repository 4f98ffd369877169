"""has_triton: installed or not, without an import."""

import importlib.util
import subprocess
import sys

import pytest

from chairlift.model.triton_package import has_triton


def test_it_is_there_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_triton()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not has_triton()


def test_nothing_is_imported() -> None:
    words = "has_triton(); print('triton' in sys.modules)"
    code = f"import sys; from chairlift.model.triton_package import has_triton; {words}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
