"""model_names: the names of the built-in models, and the message for a run without a model name."""

from pathlib import Path

import pytest

from chairlift import demo
from chairlift.llm.builtin_models import DEMO, RANDOM, embedded_folder, is_demo, no_model_given, warn_no_model
from chairlift.model.config.hub import HUB_ID


def test_no_hub_id_can_be_one_of_ours() -> None:
    assert not HUB_ID.fullmatch(DEMO) and not HUB_ID.fullmatch(RANDOM)


def test_the_demo_is_meant_by_its_name_and_by_none() -> None:
    assert is_demo(None) and is_demo(DEMO)
    others = (RANDOM, "", "demo", str(demo.FOLDER), Path("chairlift"))
    assert not any(map(is_demo, others))
    assert embedded_folder(None) == embedded_folder(DEMO) == demo.FOLDER
    assert not any(map(embedded_folder, others))


def test_the_sentence_names_the_size_and_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    assert no_model_given() == (
        f"no model given: the embedded demo model ({demo.parameters() / 1e6:.1f} million parameters, a toy; "
        "name a Hugging Face folder or id for a real one)"
    )
    warn_no_model()
    assert caplog.messages == [no_model_given()]
