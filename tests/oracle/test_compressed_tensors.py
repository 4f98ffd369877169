"""Quantized folders in float64: logits of transformers' model with the numbers that the formula of the form gives."""

from pathlib import Path

import pytest
import torch

from support_compressed import FORMS, write_quantized
from support_dense_logits import assert_equal_logits

CPU = torch.device("cpu")


@pytest.mark.share(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["llama", "llama-bias", "qwen3"])
def test_logits_are_those_of_the_numbers_in_the_files(kind: str, form: str, tmp_path: Path) -> None:
    assert_equal_logits(tmp_path, write_quantized(tmp_path, kind, FORMS[form]))
