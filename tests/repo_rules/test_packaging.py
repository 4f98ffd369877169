"""pyproject.toml: the version of the package, few dependencies with lower bounds only, and a pin for each."""

import re
import tomllib

import chairlift
from support_source_tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAX_BASE_DEPENDENCIES = 18


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", line)[0].lower().replace("_", "-") for line in requirements}


def test_the_version_is_the_same_in_the_package_and_in_pyproject() -> None:
    assert PROJECT["version"] == chairlift.__version__


def test_there_are_few_base_dependencies() -> None:
    assert len(PROJECT["dependencies"]) <= MAX_BASE_DEPENDENCIES
    assert "transformers" not in names(PROJECT["dependencies"])


def test_dependencies_have_a_lower_bound_only() -> None:
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    lines = PROJECT["dependencies"] + [line for line in extras if not line.startswith("chairlift[")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+(\[[a-z]+\])?>=[0-9.]+", line)] == []


def test_every_dependency_is_pinned_for_the_tests() -> None:
    pins = [line for line in (ROOT / "constraints" / "test.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9.]+", line)] == []
    extras = PROJECT["optional-dependencies"]
    required = names(PROJECT["dependencies"] + [line for extra in extras.values() for line in extra]) - {"chairlift"}
    # A CUDA build of torch needs a triton of its own; flashinfer-python needs a GPU, so that no test runs it.
    assert required - names(pins) == {"triton", "flashinfer-python"}
