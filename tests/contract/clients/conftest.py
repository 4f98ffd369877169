"""What the tests of Python clients share; they run where Chairlift is not installed (see tools/external_suites)."""

import os

import pytest
from pydantic import BaseModel


class City(BaseModel):
    """What is known of a city."""

    name: str
    population: int
    is_capital: bool


@pytest.fixture
def city_class() -> type[City]:
    return City


@pytest.fixture
def url() -> str:
    """Base URL of the server with the demo model."""
    return os.environ["CHAIRLIFT_SUITE_URL"]


@pytest.fixture
def scripted_url() -> str:
    """Base URL of the server with scripted replies: tests/support_scripted_model.py has the script."""
    return os.environ["CHAIRLIFT_SUITE_SCRIPTED_URL"]
