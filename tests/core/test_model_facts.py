"""ModelFacts: nothing is known without a model."""

from chairlift.core.model_facts import ModelFacts


def test_unknown_facts_are_empty() -> None:
    facts = ModelFacts()
    assert not any((facts.architecture, facts.dtype, facts.quantization, facts.num_parameters, facts.weight_bytes))
    assert ModelFacts(num_parameters=1) != facts
