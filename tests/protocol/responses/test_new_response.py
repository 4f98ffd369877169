"""NewResponse: its writer has its id and time, and the store gets it only if the request wants that."""

import json
import time
from typing import Any

from chairlift.protocol.responses.compaction_item import compaction_item
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


def test_a_compaction_among_the_new_items_ends_what_is_read_before() -> None:
    store, ours = ResponseStore(10**6), compaction_item("cmp_a_1", "S")
    tool, answer = {"type": "additional_tools", "role": "developer", "tools": []}, {"role": "assistant", "content": "a"}
    user: dict[str, Any] = {"type": "message", "role": "user", "content": "Hi"}
    store.add("alice", {"id": "resp_a", "output": [answer]}, [user, tool])

    def saved(items: list[Any], output: list[Any], previous: str | None = None) -> tuple[str, list[Any]]:
        body = {"model": "m", "input": items, "previous_response_id": previous}
        new = NewResponse(read_response_request(body, store, "alice"), store, "alice")
        new.save(response := new.writer({"model": "m"}).response("completed", output))
        assert store.input_items("alice", new.id) == items and store.response("alice", new.id) == response
        return new.id, [json.loads(part) for part in store.conversation("alice", new.id)]

    assert saved([user], [ours], "resp_a")[1] == [[user, tool, user, ours]]
    by_client, parts = saved([user, answer, ours], [answer], "resp_a")
    assert parts == [[user, tool, user, ours, answer]]
    assert saved([user], [answer], by_client)[1] == [*parts, [user], [answer]]
    assert saved([user, answer], [ours])[1] == [[user, ours]]
    assert saved([user, ours, user], [answer])[1] == [[user, ours, user], [answer]], "nothing is left out"
    store.add("alice", {"id": "resp_b", "output": [answer]}, [answer])
    assert saved([ours, user], [answer], "resp_b")[1] == [[ours, user, answer]], "no message is kept, only the summary"
    other = {"type": "compaction", "encrypted_content": "x"}
    assert saved([other], [answer], "resp_a")[1] == [[user, tool], [answer], [other], [answer]]
