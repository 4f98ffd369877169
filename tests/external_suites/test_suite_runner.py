"""run_suite(): a suite runs in a pytest process of its own, and each failure, error and skip is read."""

import shutil
from pathlib import Path

import pytest

from external_suites.suite_runner import Suite, run_suite

CASES = """
import os
import pytest

def test_good():
    assert os.environ["SUITE_SAYS"] == "hello"

@pytest.mark.parametrize("x", ["one", "two"])
def test_bad(x):
    raise RuntimeError(f"no {x}")

@pytest.mark.skip(reason="no flag")
def test_skipped():
    pass

@pytest.fixture
def broken():
    yield
    raise RuntimeError("after")

def test_around(broken):
    pass

@pytest.mark.xfail(reason="not yet")
def test_hidden():
    assert False
"""

NODE_CASES = """
import assert from "node:assert";
import { test } from "node:test";
test("good", () => assert.equal(process.env.SUITE_SAYS, "hello"));
test("bad", () => { throw new Error("no one"); });
"""


def suite(folder: Path, *words: str) -> Suite:
    return Suite("a suite", folder, ["-p", "no:cacheprovider", *words], {"SUITE_SAYS": "hello"}, "test_cases.")


@pytest.mark.full
def test_what_became_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_cases.py").write_text(CASES, encoding="utf-8")
    result = run_suite(suite(tmp_path), tmp_path)
    assert result["test_good"].passed
    assert [name for name, outcome in result.items() if outcome.passed] == ["test_good"]
    assert set(result) == {"test_good", "test_bad[one]", "test_bad[two]", "test_skipped", "test_around", "test_hidden"}
    assert "failure: RuntimeError: no two" in result["test_bad[two]"].message
    assert "skipped: no flag" in result["test_skipped"].message
    assert "after" in result["test_around"].message
    assert (tmp_path / "a-suite.xml").exists()


@pytest.mark.full
def test_a_suite_of_which_nothing_ran_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)no test of a suite ran:.*nowhere\.py"):
        run_suite(suite(tmp_path, "nowhere.py"), tmp_path)
    (tmp_path / "a-suite.xml").write_text('<testsuite><testcase classname="x" name="y"/></testsuite>', encoding="utf-8")
    with pytest.raises(RuntimeError, match="no test of a suite ran"):
        run_suite(suite(tmp_path, "--version"), tmp_path)


def test_a_suite_for_node(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("node not found in PATH")
    (tmp_path / "some.test.mjs").write_text(NODE_CASES, encoding="utf-8")
    result = run_suite(Suite("a suite", tmp_path, ["some.test.mjs"], {"SUITE_SAYS": "hello"}, "test.", None), tmp_path)
    assert result["good"].passed and "no one" in result["bad"].message and set(result) == {"good", "bad"}
