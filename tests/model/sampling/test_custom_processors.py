"""Factories are imported when the engine is made; what a processor returns is checked."""

from pathlib import Path

import pytest
import torch

from chairlift.core.errors import ConfigError, SamplingFailed
from chairlift.model.sampling.custom_processors import NamedProcessor, build_processors, import_factories

MODULE = """
class Biased:
    def __init__(self, by=1.0):
        self.by = by
    def __call__(self, input_ids, scores):
        return scores + self.by

class House:
    factory = Biased

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_processors.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return "their_processors"


def test_a_factory_is_named_by_its_module_and_attribute(module: str) -> None:
    factories = import_factories({"a": f"{module}:Biased", "b": f"{module}:House.factory"})
    (made,) = build_processors((("b", '{"by": 3.0}'),), factories)
    assert made.name == "b"
    assert made.apply(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 4)).tolist() == [[3.0] * 4]


def test_those_of_transformers_work_as_they_are() -> None:
    factories = import_factories({"top": "transformers:TopKLogitsWarper"})
    (made,) = build_processors((("top", '{"top_k": 2}'),), factories)
    moved = made.apply(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[1.0, 3.0, 2.0]]))
    assert moved.isfinite().tolist() == [[False, True, True]]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("no.such.module:f", "No module named"), ("their_processors:Absent", "has no attribute"),
        ("their_processors", "no logits processor"), ("their_processors:number", "cannot be called"),
        (":f", "no logits"), ("their_processors:", "no logits"),
    ],
)  # fmt: skip
def test_one_that_is_not_there_is_an_error_at_start(module: str, where: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        import_factories({"x": where})


def test_scores_keep_their_dtype() -> None:
    processor = NamedProcessor("x", lambda input_ids, scores: scores.double() * 2)
    assert processor.apply(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 3)).dtype == torch.float32


@pytest.mark.parametrize("returned", [None, torch.ones(3), torch.ones(1, 2), [1.0], torch.full((1, 3), torch.inf)])
def test_what_is_no_score_of_each_token_is_refused(returned: object) -> None:
    processor = NamedProcessor("x", lambda input_ids, scores: returned)
    with pytest.raises(SamplingFailed, match="logits processor 'x' returned"):
        processor.apply(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 3))
