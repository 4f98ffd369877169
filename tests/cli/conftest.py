"""The command line configures logging; after each test it is as it was."""

import pytest


@pytest.fixture(autouse=True)
def restored(log_as_before: None) -> None:
    """Every test here may configure it."""
