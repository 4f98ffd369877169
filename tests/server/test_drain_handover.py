"""Handover: requests are registered while they are open, and taken once."""

import pytest

from chairlift.server.drain_handover import Handover


def test_open_requests_are_taken_once() -> None:
    handover = Handover()
    with handover.registered(["a", "b"]):
        with handover.registered(["c"]):
            pass
        assert handover.take_all() == {"a", "b"} and handover.take_all() == set()
        with handover.registered(["d"]):
            assert handover.take_all() == {"d"}
    with pytest.raises(RuntimeError), handover.registered(["e"]):
        raise RuntimeError
    assert handover.take_all() == set()
