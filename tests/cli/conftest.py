"""The command line configures logging; after each test it is as it was."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    log = logging.getLogger("chairlift")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)
