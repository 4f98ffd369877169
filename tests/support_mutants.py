"""A small project with tests, and faults in it, for the tests of tools/mutants."""

from pathlib import Path
from typing import Any

from mutants.mutant import Mutant

FILES = {
    "pytest.ini": "[pytest]\naddopts = -p xdist.plugin\n",
    "src/counting/__init__.py": "",
    "src/counting/parts.py": (
        "def double(number):\n    return 2 * number\n\ndef half(number):\n    return number // 2\n"
    ),
    "src/counting/factor.cpp": "FACTOR = 3\n",
    "src/counting/compiled.py": "FACTOR = 3\n",
    "src/counting/compile.py": (
        "from pathlib import Path\n\nHERE = Path(__file__).parent\ntext = (HERE / 'factor.cpp').read_text()\n"
        "assert text.startswith('FACTOR = ')\n(HERE / 'compiled.py').write_text(text)\n"
    ),
    "tests/test_parts.py": (
        "import subprocess, sys\nfrom counting import compiled, parts\n\n"
        "def test_double():\n    assert parts.double(2) == 4\n\n"
        "def test_factor():\n    assert compiled.FACTOR == 3\n\n"
        "def test_half_in_a_child_without_environment():\n"
        "    code = 'from counting.parts import half; assert half(4) == 2'\n"
        "    subprocess.run([sys.executable, '-c', code], env={}, check=True)\n"
    ),
    "tests/test_wrong.py": "def test_wrong():\n    assert 1 + 1 == 3\n",
}
"""Path -> text. A child process of the tests has neither PYTHONPATH nor anything else in its environment."""

COMPILE_MODULE = "counting.compile"


def make_project(root: Path) -> Path:
    """Write the project into a folder and return it."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def make_mutant(name: str = "double", **fields: Any) -> Mutant:
    """Make a mutant of the project, by default one that test_double sees."""
    values = {
        "fault": "a number is doubled thrice", "file": "src/counting/parts.py", "old": "2 * number",
        "new": "6 * number", "tests": ("tests/test_parts.py",),
    }  # fmt: skip
    return Mutant(id=name, **(values | fields))
