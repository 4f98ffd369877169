"""unsupported: the error is a sentence with the reason, and has a remedy."""

from chairlift.model.transformers.unsupported_layers import unsupported


def test_a_reason_is_a_sentence_with_a_remedy() -> None:
    error = unsupported("it has no layers")
    assert error.message == "this model cannot run on a paged KV cache: it has no layers" and error.details["remedy"]
