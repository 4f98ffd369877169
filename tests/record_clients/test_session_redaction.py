"""A stored session has neither prose of a client nor paths, ids and times of a machine."""

import json
from typing import Any

from record_clients.session_redaction import GRAMMAR, SessionRedaction
from record_clients.text_placeholder import TextPlaceholder
from support_shares import for_each

VALUES = {"work": "/tmp/x1/job", "home": "/tmp/x1/home", "url": "http://127.0.0.1:4711"}
PROSE = "You are an agent that reads all files before it answers."
UUID, SAME = "12345678-abcd-4bcd-8bcd-1234567890ab", "00000000-0000-4000-8000-000000000001"


def redact(value: Any, *own_texts: str) -> Any:
    request = {"method": "POST", "path": "/v1/messages", "headers": {}, "body": value}
    session = {"client": "c", "version": "1", "commands": [], "environment": {}, "requests": [request]}
    return SessionRedaction(VALUES, own_texts).redact(session)["requests"][0]["body"]


@for_each(
    ("value", "stored"),
    [
        (PROSE, TextPlaceholder.of(PROSE, 1).written()),
        ("x" * 61, "⟦text 1: 61⟧"),
        ("", ""), (None, None), (3, 3), (1.5, 1.5), (True, True), ([], []), ({}, {}),
        ("List all files", "List all files"),
        ({"enum": [PROSE], "name": PROSE, "arguments": PROSE}, {"enum": [PROSE], "name": PROSE, "arguments": PROSE}),
        ({"role": "user", "content": [{"type": "text", "text": PROSE}]},
         {"role": "user", "content": [{"type": "text", "text": "⟦text 1: 56⟧"}]}),
        ([PROSE, PROSE, PROSE + "!"], ["⟦text 1: 56⟧", "⟦text 1: 56⟧", "⟦text 2: 57⟧"]),
        ("x-anthropic-billing-header: cc_version=1; cc_entrypoint=cli; cch=0a1b2;",
         "x-anthropic-billing-header: cc_version=1; cc_entrypoint=cli; cch=0a1b2;"),
        ("/tmp/x1/job/a", "/home/ada/project/a"), ("/tmp/x1/home/.c", "/home/ada/.c"),
        ("http://127.0.0.1:4711/v1", "http://127.0.0.1:8000/v1"), (f"msg_{UUID}", f"msg_{SAME}"),
        ([UUID, UUID, "0" * 8 + UUID[8:]], [SAME, SAME, SAME[:-1] + "2"]),
        ("ab" * 16, "1".rjust(32, "0")), ("2031-12-24", "2026-01-01"), ("2031-12-24T10:11:12.5", "2026-01-01T00:00:00"),
        ("Sunday, May 3, 2031", "Thursday, January 1, 2026"), (1795932577667, 1767225600000),
        (json.dumps({"started": 1795932577667, "of": UUID}), json.dumps({"started": 1767225600000, "of": SAME})),
        ({"type": "grammar", "syntax": "lark", "definition": "start: a"},
         {"type": "grammar", "syntax": "lark", "definition": GRAMMAR}),
    ],
)  # fmt: skip
def test_values_are_replaced(value: Any, stored: Any) -> None:
    assert redact({"x": value}) == {"x": stored}


def test_our_own_texts_stay() -> None:
    assert redact([PROSE, f"  {PROSE}\n"], PROSE) == [PROSE, f"  {PROSE}\n"]
    assert (
        redact("Read /home/ada/project/note.txt before you answer me", "Read /tmp/x1/job/note.txt before you answer me")
        == "Read /home/ada/project/note.txt before you answer me"
    )


def test_only_headers_that_a_server_reads_are_stored() -> None:
    headers = {"content-type": "application/json", "host": "h", "content-length": "1", "x-stainless-os": "Linux",
               "authorization": "Bearer k", "anthropic-beta": "a-2031-12-24", "session-id": UUID}  # fmt: skip
    request = {"method": "GET", "path": f"/v1/models?id={UUID}", "headers": headers, "body": None}
    session = {"client": "c", "version": "1", "commands": [["c"]], "environment": {"A": "{url}"}, "requests": [request]}
    stored = SessionRedaction(VALUES, ()).redact(session)
    assert {**stored, "requests": []} == {**session, "requests": []}
    assert stored["requests"][0]["path"] == f"/v1/models?id={SAME}"
    assert stored["requests"][0]["headers"] == {
        "content-type": "application/json", "authorization": "Bearer k", "anthropic-beta": "a-2031-12-24",
        "session-id": SAME,
    }  # fmt: skip
