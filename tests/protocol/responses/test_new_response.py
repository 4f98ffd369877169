"""NewResponse: its writer has its id and time, and the store gets it only if the request wants that."""

import time

from chairlift.protocol.responses.new_response import NewResponse
from chairlift.protocol.responses.request import read_response_request
from chairlift.protocol.responses.response_store import ResponseStore


def make(store: ResponseStore, *, is_stored: bool) -> NewResponse:
    request = read_response_request({"model": "m", "input": "Hi", "store": is_stored}, store, "alice")
    return NewResponse(request, store, "alice")


def test_the_writer_has_the_id_and_the_time_of_the_completion_or_of_now() -> None:
    new = make(ResponseStore(0), is_stored=True)
    assert new.id.startswith("resp_") and new.id != make(ResponseStore(0), is_stored=True).id
    response = new.writer({"model": "m", "created": 5}).response("completed", [])
    assert (response["id"], response["created_at"], response["model"]) == (new.id, 5, "m")
    before = int(time.time())
    assert before <= new.writer({"model": "m"}).response("completed", [])["created_at"] <= int(time.time())


def test_it_is_stored_if_the_request_wants_that_and_there_is_room() -> None:
    store = ResponseStore(10**6)
    for is_stored in (True, False):
        new = make(store, is_stored=is_stored)
        response = new.writer({"model": "m"}).response("completed", [])
        new.save(response)
        assert response["store"] is is_stored
    assert len(store) == 1
    small = ResponseStore(1)
    response = {"id": "resp_a", "output": [], "store": True}
    make(small, is_stored=True).save(response)
    assert response["store"] is False and not len(small)
