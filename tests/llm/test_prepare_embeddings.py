"""prepare_embeddings over a fake engine: order, options, and errors that say which prompt."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from chairlift.core.errors import ContextLengthExceeded, InvalidRequest
from chairlift.llm.prepare_embeddings import prepare_embeddings
from chairlift.llm.text_service import TextService
from support_services import FAKE, fake_service


@pytest.fixture
def service() -> Iterator[TextService]:
    service = fake_service()
    with closing(service.client):
        yield service


def test_requests_are_in_the_order_of_the_lists_and_of_their_prompts(service: TextService) -> None:
    processors = prepare_embeddings(service, {"text": ["a"], "other": ["b", [3]]}, "mean", tenant="t")
    assert [list(each.request.prompt_token_ids) for each in processors] == [[97], [98], [3]]
    assert {(each.request.pooling, each.request.tenant) for each in processors} == {("mean", "t")}
    assert len({each.request.request_id for each in processors}) == 3


def test_the_error_of_a_prompt_says_which_of_which_list(service: TextService) -> None:
    with pytest.raises(ContextLengthExceeded, match=r"^other\[1\]: the text has") as caught:
        prepare_embeddings(service, {"text": ["a"], "other": ["b", "x" * (FAKE.max_model_len + 1)]}, None)
    assert caught.value.details["index"] == 1
    with pytest.raises(InvalidRequest, match=r"^tenant"):
        prepare_embeddings(service, {"text": ["a", "b"]}, None, tenant="x" * 300)
