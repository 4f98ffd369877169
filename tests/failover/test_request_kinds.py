"""Request kinds: each one that the router promises to resume is among them, and their names are unique."""

from failover.request_kinds import CHAT, KINDS, Model, RequestKind


def all_kinds() -> list[RequestKind]:
    return [kind for kinds in KINDS.values() for kind in kinds]


def test_every_kind_of_request_is_there() -> None:
    bodies = [kind.body(3) for kind in all_kinds()]
    for name in (
        "tools", "tool_choice", "logprobs", "response_format", "structured_outputs", "presence_penalty", "echo",
        "return_token_ids", "min_tokens", "prediction",
    ):  # fmt: skip
        assert any(name in body for body in bodies), name
    assert any(body.get("n", 1) > 1 for body in bodies) and any(body.get("temperature") == 0 for body in bodies)
    assert any(kind.stop_at for kind in all_kinds()) and any(not kind.is_streamed for kind in all_kinds())
    assert any("<think>" in str(body["messages"]) for body in bodies if "messages" in body)


def test_names_are_unique_and_a_body_is_of_its_model_with_a_seed() -> None:
    names = [kind.name for kind in all_kinds()]
    assert len(set(names)) == len(names)
    for model, kinds in KINDS.items():
        for kind in kinds:
            body = kind.body(7)
            assert (body["model"], body["seed"], kind.model) == (model.value, 7, model)
            assert ("messages" in body) == (kind.path == CHAT)
            options = body.get("stream_options")
            assert options is None if not kind.is_streamed else options["include_usage"] is True


def test_fields_win_over_the_defaults() -> None:
    assert RequestKind(name="x", model=Model.FAKE, fields={"max_tokens": 3}).body(1)["max_tokens"] == 3
