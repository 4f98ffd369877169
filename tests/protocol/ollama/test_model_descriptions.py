"""tags, running_models, shown_model: models of /v1/models as the client's types have them, with what is known."""

import ollama
import pytest

from chairlift.protocol.ollama.model_descriptions import _short_number, running_models, shown_model, tags
from support_sdk_schemas import checked_closely

DETAILS = {
    "architecture": "Qwen3ForCausalLM", "dtype": "bfloat16", "num_parameters": 596_049_920,
    "weight_bytes": 1_192_099_840, "device": "cuda:0", "capabilities": ["completion", "tools", "thinking"],
}  # fmt: skip
CARD = {"id": "m", "object": "model", "created": 1_700_000_000, "owned_by": "chairlift", "max_model_len": 4096,
        "details": DETAILS}  # fmt: skip
UNKNOWN = {"id": "other", "object": "model"}
OWN = frozenset({"name"})
"""What Ollama lists, and the client's type lacks."""


def test_a_list() -> None:
    response = checked_closely(ollama.ListResponse, tags([CARD, UNKNOWN]), OWN)
    first, second = response.models
    assert first.model == "m" and first.size == 1_192_099_840 and first.modified_at is not None
    assert first.modified_at.year == 2023 and first.digest is not None and len(first.digest) == 64
    assert first.details is not None and first.details.model_dump() == {
        "parent_model": "", "format": "safetensors", "family": "qwen3", "families": ["qwen3"],
        "parameter_size": "596.05M", "quantization_level": "bfloat16",
    }  # fmt: skip
    assert second.size is None and second.details is not None and second.details["family"] == ""


def test_the_digest_is_that_of_the_model() -> None:
    def digest(**changes: object) -> object:
        return tags([CARD | changes])["models"][0]["digest"]

    assert digest() == digest(created=1) and len({digest(), digest(id="n"), digest(details={})}) == 3


def test_what_is_in_memory() -> None:
    first, second = checked_closely(ollama.ProcessResponse, running_models([CARD, UNKNOWN])).models
    assert first.size_vram == first.size == 1_192_099_840 and first.context_length == 4096
    assert first.expires_at is not None and first.expires_at.year == 9999
    assert second.size_vram is None and second.context_length is None
    on_cpu = running_models([CARD | {"details": DETAILS | {"device": "cpu"}}])["models"][0]
    assert on_cpu["size_vram"] == 0


def test_a_description() -> None:
    response = checked_closely(ollama.ShowResponse, shown_model(CARD))
    assert response.modelinfo == {
        "general.architecture": "qwen3", "general.parameter_count": 596_049_920, "qwen3.context_length": 4096,
    }  # fmt: skip
    assert response.capabilities == ["completion", "tools", "thinking"]
    quantized = shown_model(CARD | {"details": DETAILS | {"quantization": "int8"}})
    assert quantized["details"]["quantization_level"] == "int8"
    other = checked_closely(ollama.ShowResponse, shown_model(UNKNOWN | {"max_model_len": 7, "details": None}))
    assert other.modelinfo == {"general.context_length": 7} and other.capabilities == ["completion"]


@pytest.mark.parametrize(("count", "text"), [
    (12, "12"), (1_500, "1.5K"), (3_279_104, "3.28M"), (7_241_732_096, "7.2B"), (70_553_706_496, "70.6B"),
])  # fmt: skip
def test_numbers_of_parameters(count: int, text: str) -> None:
    assert _short_number(count) == text
