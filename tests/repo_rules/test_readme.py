"""Every example of the README and of pages of docs/ runs: python by block, console line by line.

A fenced block counts as an example when its language is `python` or `console`. A block may be left out only with a
reason, in a comment right above it: `<!-- not run: reason -->`. Blocks of a language share an empty folder and run in
the order in which they stand, so that a later one may read the files of an earlier one. What speaks to the server of
`make serve` is sent to one that this test has started, on a port of its own.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from chairlift.bench.offline import comparison
from chairlift.cli.main import main
from support_forks import TORCH_MODULES, run_process
from support_server import real_server
from support_services_processes import free_port
from support_shares import for_each
from support_source_tree import ROOT

SERVED = "localhost:8000"
PYTHON_PAGES: Mapping[str, int] = {
    "README.md": 2, "docs/quickstart.md": 2, "docs/python.md": 2, "docs/from-transformers.md": 2,
    "docs/from-vllm.md": 1, "docs/scheduling.md": 1,
}  # fmt: skip
"""Pages whose python blocks run, and how many they have at least."""
CONSOLE_PAGES: Mapping[str, tuple[str, ...]] = {
    "README.md": ("chairlift generate", SERVED),
    "docs/quickstart.md": ("chairlift generate", "chairlift doctor", SERVED),
    "docs/benchmarks.md": ("chairlift bench offline", "chairlift bench simulate"),
}
"""Pages whose console lines run, and what some of the lines contain; those of `make test-all` take a minute."""
PAGES_IN_FULL = [page for page in CONSOLE_PAGES if page != "README.md"]
PAGES = (*PYTHON_PAGES, "docs/benchmarks.md", "docs/contributing.md")
"""Pages on which a block is left out with a reason only."""

REASON = r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
FENCE = re.compile(REASON + r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


RUN: set[str] = set()
"""Console lines that ran in this process: a line that two pages show runs once."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


END = "-- end of the example --\n"
ONE_AFTER_ANOTHER = f"""
import runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
    print({END!r}, end="", flush=True)
"""
"""Runs scripts in one process, which imports the engine once; each has its own names."""


class Example(NamedTuple):
    line: int
    language: str
    body: str
    reason: str


def examples(text: str) -> list[Example]:
    """Return the fenced blocks of a markdown text that claim to be runnable."""
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Example(line, match["language"], match["body"], match["reason"] or ""))
    return [example for example in found if example.language in ("python", "console")]


def commands(body: str) -> list[str]:
    """Return the lines behind a `$ ` prompt, with those that they go on in; the others are what a command printed."""
    whole = body.replace("\\\n", "")
    return [line[2:] for line in whole.splitlines() if line.startswith("$ ")]


run_captured = partial(subprocess.run, capture_output=True)


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environ = {**os.environ, "PATH": path, "CHAIRLIFT_CPU_THREADS": "1"}
    run_command = partial(run_process, modules=TORCH_MODULES) if command[0] == sys.executable else run_captured
    done = run_command(command, cwd=folder, env=environ, text=True, timeout=240)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with real_server() as server:
        yield server.url.removeprefix("http://")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


def run_here(line: str) -> None:
    """Run a comparison in this process: it does not wait until the machine is quiet, as other tests run beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "MAX_QUIET_WAIT_SECONDS", 0.0)
        patch.setenv("CHAIRLIFT_CPU_THREADS", "1")
        assert main(shlex.split(line)[1:]) == 0


@pytest.mark.share(2)
@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_examples_run(page: str, folder: Path, address: str) -> None:
    blocks = [example for example in examples(text_of(page)) if example.language == "python"]
    assert len(blocks) >= PYTHON_PAGES[page]
    for example in blocks:
        (folder / f"line_{example.line}.py").write_text(example.body.replace(SERVED, address), encoding="utf-8")
    outputs = run([sys.executable, "-c", ONE_AFTER_ANOTHER, *(f"line_{each.line}.py" for each in blocks)], folder)
    for example, output in zip(blocks, outputs.split(END)[:-1], strict=True):
        assert output.strip(), f"{page}:{example.line} prints nothing"


@pytest.mark.parametrize("page", ["README.md", *(pytest.param(page, marks=pytest.mark.full) for page in PAGES_IN_FULL)])
def test_the_console_examples_run(page: str, folder: Path, address: str) -> None:
    blocks = [example for example in examples(text_of(page)) if example.language == "console" and not example.reason]
    lines = [line for example in blocks for line in commands(example.body)]
    assert [text for text in CONSOLE_PAGES[page] if not any(text in line for line in lines)] == []
    for line in lines:
        if line in RUN:
            continue
        RUN.add(line)
        if line.startswith("chairlift bench offline "):
            run_here(line)
        elif not line.startswith("curl ") or shutil.which("curl"):
            run(["sh", "-c", line.replace(SERVED, address)], folder)


@pytest.mark.full
def test_the_stream_of_the_router_example_ends_although_a_replica_is_killed(folder: Path) -> None:
    start, stream = examples(text_of("docs/router.md"))[:2]
    *servers, request, kill = commands(start.body + stream.body)
    assert len(servers) == 3 and request.startswith("curl ") and "kill -9 %1" in kill
    request = request.replace('"n": 32', '"n": 16')  # still seconds of streaming
    ready = f"until curl -sf {SERVED}/load | grep -q '\"healthy\": *2'; do sleep 0.1; done"
    script = "\n".join(["set -m", "trap 'kill -9 $(jobs -p)' EXIT", "trap exit TERM", *servers, ready, request, kill,
                        "wait %4"])  # fmt: skip
    ports = {port: str(free_port()) for port in ("8101", "8102", "8000")}
    script = re.sub(r"\b(8101|8102|8000)\b", lambda match: ports[match[0]], script)
    script = script.replace("chairlift router", f"chairlift router --port {ports['8000']}")
    output = run(["timeout", "--foreground", "120", "bash", "-c", script], folder)
    assert output.rstrip().endswith("data: [DONE]"), output


@pytest.mark.full
def test_the_result_that_the_quickstart_shows_has_the_fields_of_a_real_one(folder: Path) -> None:
    (shown,) = re.findall(r"^```json\n(.*?)^```$", text_of("docs/quickstart.md"), re.MULTILINE | re.DOTALL)
    command = "chairlift generate --quiet --json --no-chat --prompt x --max-tokens 1"
    real = json.loads(run(["sh", "-c", command], folder))
    assert json.loads(shown).keys() == real.keys()
    assert json.loads(shown)["usage"].keys() == real["usage"].keys()


@for_each("page", PAGES)
def test_a_block_is_left_out_with_a_reason_only(page: str) -> None:
    """The commands that set up the machine are what runs these tests; running them in here would never end."""
    left_out = [example for example in examples(text_of(page)) if example.reason]
    assert all(line.startswith("make ") for example in left_out for line in commands(example.body))
    assert all(example.language == "console" for example in left_out)


def test_the_reader_of_examples_sees_language_line_and_reason() -> None:
    python = "# x\n\n```python\nprint(1)\n```\n"
    console = "<!-- not run: why -->\n```console\n$ make test\nout\n$ ls\n```\n"
    first, second = examples(python + console + "```\nno\n```\n")
    assert first == Example(4, "python", "print(1)\n", "")
    assert (second.language, second.reason, commands(second.body)) == ("console", "why", ["make test", "ls"])
