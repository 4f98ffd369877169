"""Part: a body that is no JSON object counts as empty."""

from chairlift.cli.diagnosis.server_snapshot import Part


def test_a_body_that_is_no_object_counts_as_empty() -> None:
    for body in (b"[1]", b"{", b"\xff", b'{"a":' + b"[" * 100_000):
        assert Part(path="/load", status=200, body=body).object == {}
