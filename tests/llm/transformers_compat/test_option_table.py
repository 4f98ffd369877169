"""The tables name every option of transformers, each with a use, and a reason where it has no effect."""

import dataclasses

from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from chairlift.core.foreign_options import OptionEffect
from chairlift.core.sampling_params import SamplingParams
from chairlift.llm.options import Options
from chairlift.llm.transformers_compat.option_table import (
    BATCHING,
    ENGINE_OPTIONS,
    GENERATION,
    OTHER_SAMPLING,
    OptionPart,
)


def test_every_option_of_transformers_has_a_row() -> None:
    assert set(GenerationConfig().to_dict()) <= {*GENERATION, *BATCHING}
    assert {field.name for field in dataclasses.fields(ContinuousBatchingConfig)} <= set(BATCHING)
    assert not set(GENERATION) & set(BATCHING)


def test_targets_exist_and_reasons_are_given() -> None:
    sampling = {field.name for field in dataclasses.fields(SamplingParams)}
    for name, spec in (*BATCHING.items(), *GENERATION.items()):
        target = spec.setting or name
        assert (spec.effect is OptionEffect.ALIAS) == (spec.part is not None) and (
            spec.part is None or not spec.reason
        ), name
        assert spec.effect is not OptionEffect.REFUSED or spec.reason, name
        assert spec.part is not OptionPart.ENGINE or target in Options.__annotations__, name
        assert spec.part is not OptionPart.SAMPLING or target in sampling, name
    assert set(OTHER_SAMPLING) <= sampling and set(ENGINE_OPTIONS) <= set(Options.__annotations__)


def test_defaults_are_those_of_transformers() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(ContinuousBatchingConfig)}
    for name, default in defaults.items():
        assert BATCHING[name].default == default, name
