"""Fixtures of the random schedules."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def without_warnings() -> Iterator[None]:
    """Silence the warning of each failed step, for tests whose steps fail on purpose."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
