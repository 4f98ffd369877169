"""EventRingBuffer: each reader gets what it has not read, as far as it is kept."""

from chairlift.web.service.event_ring_buffer import EventRingBuffer


def test_a_reader_gets_what_is_new() -> None:
    log = EventRingBuffer(10)
    assert log.since(0) == [] and log.num_added == 0
    for number in range(3):
        log.add(number)
    assert log.since(0) == [0, 1, 2] and log.since(2) == [2] and log.since(3) == []


def test_the_oldest_entries_are_dropped() -> None:
    log = EventRingBuffer(3)
    for number in range(100):
        log.add(number)
    assert log.num_added == 100 and log.since(0) == [97, 98, 99] and log.since(98) == [98, 99]
