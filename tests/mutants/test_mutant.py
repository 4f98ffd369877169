"""Mutant: the list fits the source and the tests, and a fault replaces the only occurrence of its old text."""

from pathlib import Path

import pytest

from mutants.mutant import read_mutants
from support_mutants import make_mutant, make_project
from support_source_tree import ROOT

MUTANTS = read_mutants()


def test_the_list_has_thirty_mutants_of_the_package() -> None:
    assert len(MUTANTS) == 30
    assert [mutant.id for mutant in MUTANTS if not mutant.file.startswith("src/chairlift/")] == []


def test_the_old_text_of_each_mutant_occurs_once_in_its_file() -> None:
    counts = {mutant.id: (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) for mutant in MUTANTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_the_tests_of_each_mutant_exist() -> None:
    names = {name for mutant in MUTANTS for name in mutant.tests}
    assert sorted(name for name in names if not (ROOT / name).exists()) == []


def test_a_fault_replaces_its_old_text(tmp_path: Path) -> None:
    root = make_project(tmp_path)
    make_mutant().apply(root)
    assert "    return 6 * number\n" in (root / "src/counting/parts.py").read_text()


@pytest.mark.parametrize(("old", "count"), [("3 * number", 0), ("number", 4)])
def test_an_old_text_that_does_not_occur_once_is_an_error(tmp_path: Path, old: str, count: int) -> None:
    root = make_project(tmp_path)
    with pytest.raises(
        ValueError, match=rf"^the old text of mutant double occurs {count} times in src/counting/parts.py"
    ):
        make_mutant(old=old).apply(root)


@pytest.mark.parametrize("missing", ["fault", "file", "old", "tests"])
def test_a_mutant_needs_every_field(missing: str) -> None:
    with pytest.raises(ValueError, match="a mutant needs id, fault, file, old and tests"):
        make_mutant(**{missing: () if missing == "tests" else ""})


def test_a_mutant_that_changes_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="mutant double changes nothing"):
        make_mutant(new="2 * number")


def test_sources_in_cpp_are_compiled() -> None:
    assert [make_mutant(file=name).is_native for name in ("a.py", "a.cpp", "a.h")] == [False, True, True]


def test_a_keyword_selects_among_the_tests() -> None:
    assert make_mutant().pytest_args == ("tests/test_parts.py",)
    assert make_mutant(keyword="half or double").pytest_args == ("tests/test_parts.py", "-k", "half or double")


def test_two_mutants_of_one_id_are_an_error(tmp_path: Path) -> None:
    entry = '[[mutant]]\nid = "x"\nfault = "f"\nfile = "a.py"\nold = "1"\nnew = "2"\ntests = ["t"]\n'
    (tmp_path / "mutants.toml").write_text(entry)
    assert read_mutants(tmp_path / "mutants.toml")[0].tests == ("t",)
    (tmp_path / "mutants.toml").write_text(2 * entry)
    with pytest.raises(ValueError, match=r"mutants.toml has two mutants of one id: x"):
        read_mutants(tmp_path / "mutants.toml")
