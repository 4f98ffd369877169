"""describe_end: a sentence for each way to end."""

from chairlift.core.host.process_end import describe_end


def test_every_end_has_a_sentence() -> None:
    assert describe_end(0) == "ended with exit code 0" and describe_end(3) == "ended with exit code 3"
    assert describe_end(-9) == "was killed, probably for lack of memory; lower --max-memory"
    assert describe_end(-11) == "was ended by signal 11 (SIGSEGV)"
    assert describe_end(-99) == "was ended by signal 99 (unknown)"
