"""ContinuousBatchingConfig has transformers' fields and defaults."""

import dataclasses

from transformers.generation.configuration_utils import ContinuousBatchingConfig as Theirs

from chairlift.llm.transformers_compat.continuous_batching_config import ContinuousBatchingConfig


def test_fields_and_defaults_are_those_of_transformers() -> None:
    def fields(cls: type) -> dict[str, object]:
        return {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    assert fields(ContinuousBatchingConfig) == fields(Theirs)
