"""Tests that need a service are skipped without it, and fail with CHAIRLIFT_REQUIRE_SERVICES=1."""

import importlib.util
import re

import pytest

import support_services_processes
from support_ray import require_ray
from support_services_processes import PACKAGES, require_service


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_services_processes.shutil, "which", lambda *_, **__: None)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("program", PACKAGES)
def test_a_missing_service_skips_its_tests_with_the_name_of_its_package(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHAIRLIFT_REQUIRE_SERVICES", raising=False)
    with pytest.raises(
        pytest.skip.Exception, match=f"{re.escape(program)} is not installed .*{re.escape(PACKAGES[program])}"
    ):
        require_service(program)


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_service_fails_its_tests_where_all_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIRLIFT_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="etcd is not installed"):
        require_service("etcd")


@pytest.mark.parametrize(("variable", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)])
def test_a_missing_ray_skips_or_fails_its_tests_likewise(
    variable: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("CHAIRLIFT_REQUIRE_SERVICES", variable)
    with pytest.raises(outcome, match=r"ray is not installed \(pip install \"chairlift\[ray\]\"\)"):
        require_ray()
