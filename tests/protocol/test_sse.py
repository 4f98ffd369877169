"""sse.py: events are read by the WHATWG standard wherever the stream is cut, and have a maximum size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.protocol.sse import (
    DONE,
    MAX_EVENT_BYTES,
    EventReader,
    EventTooLarge,
    ServerSentEvent,
    comment_block,
    data_event,
    named_event,
)
from support_shares import for_each

BOM = "\ufeff".encode()


def read_events(*parts: bytes) -> list[ServerSentEvent]:
    reader = EventReader()
    return [event for part in parts for event in reader.push(part)]


def read_by_standard(stream: bytes) -> list[ServerSentEvent]:
    """Read a whole stream step by step as in the standard."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = re.split("\r\n|\r|\n", text)[:-1]  # a line without an end does not count
    events, data, event_type, last_id = [], "", "", ""
    for line in lines:
        if not line:
            if data:
                events.append(ServerSentEvent(data.removesuffix("\n"), event_type, last_id))
            data = event_type = ""
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data += value + "\n"
            elif name == "event":
                event_type = value
            elif name == "id" and "\0" not in value:
                last_id = value
    return events


STREAMS: list[tuple[str, bytes, list[ServerSentEvent]]] = [
    ("the standard's first example", b"data: YHOO\ndata: +2\ndata: 10\n\n", [ServerSentEvent("YHOO\n+2\n10")]),
    ("its second: a comment, ids, a space that counts",
     b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
     [ServerSentEvent("first event", id="1"), ServerSentEvent("second event"), ServerSentEvent(" third event")]),
    ("its third: no data, two empty lines of data, and what is not sent off", b"data\n\ndata\ndata\n\ndata:",
     [ServerSentEvent(""), ServerSentEvent("\n")]),
    ("its fourth: the space", b"data:test\n\ndata: test\n\n", [ServerSentEvent("test"), ServerSentEvent("test")]),
    ("returns", b"data: a\rdata: b\r\rdata: c\r\r", [ServerSentEvent("a\nb"), ServerSentEvent("c")]),
    ("returns and newlines", b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n",
     [ServerSentEvent("a\nb"), ServerSentEvent("c")]),
    ("a return, then a newline of its own", b"data: a\r\n\rdata: b\n\r\n",
     [ServerSentEvent("a"), ServerSentEvent("b")]),
    ("a byte order mark", BOM + b"data: a\n\n", [ServerSentEvent("a")]),
    ("a second one is part of a name", BOM + BOM + b"data: a\n\ndata: b\n\n", [ServerSentEvent("b")]),
    ("one in another line", b"\n" + BOM + b"data: a\n\ndata: b\n\n", [ServerSentEvent("b")]),
    ("types", b"event: x\ndata: a\n\ndata: b\n\nevent: y\nevent: z\ndata: c\n\n",
     [ServerSentEvent("a", "x"), ServerSentEvent("b"), ServerSentEvent("c", "z")]),
    ("a type without data counts for no later event", b"event: x\n\ndata: a\n\n", [ServerSentEvent("a")]),
    ("an id stays, also one without data", b"id: 7\n\ndata: a\n\ndata: b\nid: 8\n\ndata: c\n\nid:\ndata: d\n\n",
     [ServerSentEvent("a", id="7"), ServerSentEvent("b", id="8"), ServerSentEvent("c", id="8"), ServerSentEvent("d")]),
    ("an id with NUL is ignored", b"id: 7\nid: 8\0\ndata: a\n\n", [ServerSentEvent("a", id="7")]),
    ("retry and unknown fields", b"retry: 10\nretry: x\nDATA: a\ndata : b\n data: c\nfoo\n:\ndata: d\n\n",
     [ServerSentEvent("d")]),
    ("colons in the value", b"data: a: b\ndata::\n\n", [ServerSentEvent("a: b\n:")]),
    ("what is no end of line here", "data: a\u2028b\x0bc\x0cd\x1ce\x85f\n\n".encode(),
     [ServerSentEvent("a\u2028b\x0bc\x0cd\x1ce\x85f")]),
    ("bytes that are no text", b"data: \xff\xe2\x82\xf0\x9f\x98!\n\n", [ServerSentEvent("\ufffd\ufffd\ufffd!")]),
    ("text", "data: 😀 é\n\n".encode(), [ServerSentEvent("😀 é")]),
    ("nothing", b"", []),
    ("only ends", b"\n\r\n\r\r\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("stream", "events"), [stream[1:] for stream in STREAMS], ids=[name for name, *_ in STREAMS])
def test_a_stream_is_read_by_the_rules_however_it_is_cut(stream: bytes, events: list[ServerSentEvent]) -> None:
    assert read_events(stream) == read_by_standard(stream) == events
    assert read_events(*(bytes([byte]) for byte in stream)) == events
    for position in range(len(stream)):
        assert read_events(stream[:position], b"", stream[position:]) == events


FRAGMENTS = [b"data", b"event", b"id", b"retry", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"x", BOM, b"\xff",
          "é😀".encode(), b"data: a\n", b"id: 1\n", b"event: e\n", b": c\n"]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=24), st.data())
def test_any_cut_of_any_stream_gives_the_same_events(fragments: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    parts = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read_events(*parts) == read_events(stream) == read_by_standard(stream)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_by_the_rules(stream: bytes) -> None:
    assert read_events(stream) == read_events(*(bytes([byte]) for byte in stream)) == read_by_standard(stream)


def test_an_event_comes_with_the_first_byte_of_the_end_of_its_empty_line() -> None:
    """Waiting for the newline after a carriage return would delay the event until the next one."""
    reader = EventReader()
    assert reader.push(b"data: a\r\n\r") == [ServerSentEvent("a")]
    assert reader.push(b"\n") == [] and reader.push(b"data: b\n") == []
    assert reader.push(b"\n") == [ServerSentEvent("b")]


LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


@pytest.mark.full
@given(st.lists(st.tuples(LINES.filter(lambda name: name and name[0] != " "), LINES), max_size=4), st.booleans())
def test_what_is_written_is_read_back(events: list[tuple[str, str]], has_name: bool) -> None:
    stream = b"".join(
        b": keep-alive\n\n" + (named_event(name.encode(), text.encode()) if has_name else data_event(text.encode()))
        for name, text in events
    )
    assert read_events(stream + DONE) == [
        *(ServerSentEvent(text, name if has_name else "") for name, text in events),
        ServerSentEvent("[DONE]"),
    ]


@for_each("parts", [1, 3, 1000])
@for_each("stream", [b"data: " + b"x" * 200, b"x" * 200, b"data: x\n" * 40, b": x\n" * 90, b"\xff" * 200])
def test_an_event_beyond_the_limit_ends_the_reading(stream: bytes, parts: int) -> None:
    reader = EventReader(max_event_bytes=100)
    cut = [stream[start : start + parts] for start in range(0, len(stream), parts)]
    with pytest.raises(EventTooLarge, match="more bytes than the limit, 100") as caught:
        [reader.push(part) for part in cut]
    assert caught.value.code == "event_too_large"


def test_the_limit_is_that_of_one_event() -> None:
    fits = b"data: " + b"x" * 94 + b"\n\n"
    assert len(EventReader(max_event_bytes=100).push(fits * 9 + b": " + b"c" * 98 + b"\n\n" + fits)) == 10
    with pytest.raises(EventTooLarge):
        EventReader(max_event_bytes=99).push(fits)
    assert MAX_EVENT_BYTES >= 2**20
    (event,) = EventReader().push(b"data: " + b"x" * 2**20 + b"\n\n")
    assert len(event.data) == 2**20


def test_a_comment_is_a_block_of_its_own_which_readers_skip() -> None:
    assert comment_block(b"waiting, 3 ahead") == b": waiting, 3 ahead\n\n"
    stream = comment_block(b"waiting") * 2 + data_event(b"1") + comment_block(b"data: 2") + named_event(b"error", b"3")
    for size in (1, 3, 1000):
        reader = EventReader()
        found = [event for i in range(0, len(stream), size) for event in reader.push(stream[i : i + size])]
        assert found == [ServerSentEvent("1"), ServerSentEvent("3", "error")]
