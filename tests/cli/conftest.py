"""Restores the log configuration after each test, because commands change it."""

import pytest


@pytest.fixture(autouse=True)
def restored(log_as_before: None) -> None:
    """Let every test of this folder configure the log."""
