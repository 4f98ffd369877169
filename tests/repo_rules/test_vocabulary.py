"""Code and documents use the field's terms: no word of the old metaphor is left in names, texts or file names."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from support_shares import for_each
from support_source_tree import ROOT, shown

BANNED = (
    "rides?|riders?|riding|rode|board|boards|boarded|boarding|roster|flights?|seats?|seated|guests?|desks?|letters?|"
    "outbox|mailbox|turnstile|voices?|errands?|thrift|diary|told|whoever|somebody|nobody|everybody|anybody|doors?|house|"
    "roof|passengers?|ledger|famil(?:y|ies)"
)
STEMS = tuple(re.sub(r"(\(|.\?)$", "", each) for each in BANNED.replace("(?:y|ies)", "(").split("|"))
"""What a text with a banned word has in it: a quick look before its words are read."""

ALLOWED = re.compile(
    r"in[ _-]flight|InFlight|Draft202012(?:Validator)?|metric[ _]?famil(y|ies)"
    r"|\"famil(y|ies)\"",  # fields of Ollama's API
    re.IGNORECASE,
)
"""The field's own phrases and other libraries' names, taken out before a text is searched."""

WORD = re.compile("[A-Z]+[a-z]*|[a-z]+")  # of a name in camel case, too
IS_BANNED = re.compile(BANNED).fullmatch

DATA = ("src/chairlift/demo", "tools/demo_model", "tests/demo", "tests/demo_model", "benchmarks/results")
"""The demo model with its training texts, and committed results: data, whose words stay."""


def violations(text: str) -> set[str]:
    """Return the banned words of a text, of names in snake case and in camel case, too."""
    return banned_words(ALLOWED.sub(" ", text))


def banned_words(text: str) -> set[str]:
    """Return the banned words of a text, also those of ALLOWED phrases."""
    lower = text.lower()
    if not any(stem in lower for stem in STEMS):
        return set()
    return {word for word in {each.lower() for each in set(WORD.findall(text))} if IS_BANNED(word)}


def python_text(path: Path) -> str:
    """Return a module's names, comments and strings, one a line; of a test module only the strings that are docstrings.

    Returns "" if the module has no banned word anywhere.
    """
    source = path.read_text(encoding="utf-8")
    if not banned_words(source):
        return ""  # the module need not be parsed
    docstrings = {
        node.body[0].value.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    is_test = shown(path).startswith("tests/")
    return "\n".join(
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in (tokenize.NAME, tokenize.COMMENT)
        or (token.type == tokenize.STRING and (not is_test or token.start[0] in docstrings))
    )


def texts(path: Path) -> Iterator[str]:
    """Yield what a file says: its name and its content."""
    yield shown(path)
    if path.suffix == ".py":
        yield python_text(path)
    else:
        yield path.read_text(encoding="utf-8")


def files() -> Iterator[Path]:
    """Yield every file that the rule holds for."""
    names = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "hatch_build.py")]
    for folder, suffixes in (
        ("src", (".py", ".h", ".cpp")),
        ("tests", (".py",)),
        ("tools", (".py", ".toml")),
        ("docs", (".md",)),
    ):
        names += [path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    for path in sorted(names):
        if not shown(path).startswith(DATA) and path.name != "test_vocabulary.py":
            yield path


def found() -> dict[str, list[str]]:
    """Return the banned words of each file that has any."""
    words = {shown(path): sorted(set().union(*map(violations, texts(path)))) for path in files()}
    return {name: each for name, each in words.items() if each}


def test_no_banned_word_is_left() -> None:
    assert found() == {}


@for_each(
    ("text", "words"),
    [
        ("class Boarding", {"boarding"}), ("def take_seat", {"seat"}), ("OnBoard", {"board"}),
        ("whoever asks", {"whoever"}),
        ("num_in_flight", set()), ("InFlightStep", set()), ("two steps in flight", set()),
        ("the flight lands", {"flight"}),
        ("chairlift", set()), ("CounterMetricFamily", set()), ("family", {"family"}),
        ("keyboard", set()), ("_door", {"door"}), ("NOBODY", {"nobody"}), ("override", set()),
    ],
)  # fmt: skip
def test_words_are_found_in_names_and_in_text(text: str, words: set[str]) -> None:
    assert violations(text) == words
