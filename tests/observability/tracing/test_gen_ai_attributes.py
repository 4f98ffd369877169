"""gen_ai_attributes: operation, provider and model; nothing for other routes, and a bounded model name."""

from chairlift.observability.tracing.gen_ai_attributes import gen_ai_attributes


def test_a_generation_has_operation_provider_and_model() -> None:
    common = {"gen_ai.provider.name": "chairlift", "gen_ai.request.model": "m"}
    assert gen_ai_attributes("/v1/chat/completions", "m") == {"gen_ai.operation.name": "chat", **common}
    assert gen_ai_attributes("/v1/completions", "m") == {"gen_ai.operation.name": "text_completion", **common}


def test_other_routes_have_nothing_and_a_bad_model_has_no_name() -> None:
    assert gen_ai_attributes("/tokenize", "m") == {}
    for model in (None, 5, "", ["m"]):
        assert "gen_ai.request.model" not in gen_ai_attributes("/v1/completions", model)
    assert len(str(gen_ai_attributes("/v1/completions", "m" * 9999)["gen_ai.request.model"])) == 256
