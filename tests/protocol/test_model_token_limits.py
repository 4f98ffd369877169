"""model_token_limits: the most tokens of a request, of its prompt and of its output."""

from chairlift.protocol.model_token_limits import model_token_limits


def test_a_prompt_and_an_output_leave_room_for_one_token_of_the_other() -> None:
    assert model_token_limits(512) == {"max_model_len": 512, "max_input_tokens": 511, "max_tokens": 511}
