"""Nothing in the package can run code out of data: no pickle, no eval, no remote code (PITFALLS: security, 32)."""

import ast
import re
from collections.abc import Iterator

import pytest

from support_shares import for_each
from support_source_tree import SOURCES, imported, shown, tree_of

OWN_CHILDREN = {"src/chairlift/bench/fleet_simulation/scaling_rule_comparison.py"}
"""Modules that may use multiprocessing: a command whose children are of its own code, on pipes that only they have."""

# multiprocessing pickles what goes through its pipes and queues.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle", "multiprocessing"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
METHODS = {
    "send_pyobj", "recv_pyobj",             # ZeroMQ's pickled objects
    "torch.load", "torch.save", "torch.hub.load",
    "yaml.load", "yaml.unsafe_load",
    "os.system", "os.popen",
}  # fmt: skip
KEYWORDS = {"trust_remote_code", "allow_pickle", "shell"}
MENTIONS = re.compile("|".join(name.rpartition(".")[2] for name in MODULES | BUILTINS | METHODS | KEYWORDS)).search
"""Finds a name of the above in a source text: a module without any need not be read further."""


def faults(tree: ast.Module) -> Iterator[str]:
    """Say what a syntax tree does that it must not."""
    for name, line in imported(tree):
        if name.partition(".")[0] in MODULES:
            yield f"{line}: import {name}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in BUILTINS or called in METHODS or called.rpartition(".")[2] in METHODS:
            yield f"{node.lineno}: {called}()"
        for keyword in node.keywords:
            false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg in KEYWORDS and not false:
                yield f"{node.lineno}: {keyword.arg}="


def test_no_module_can_run_code_out_of_data() -> None:
    suspects = [path for path in SOURCES if MENTIONS(path.read_text("utf-8")) and shown(path) not in OWN_CHILDREN]
    assert suspects
    found = {shown(path): list(faults(tree_of(path))) for path in suspects}
    assert {name: each for name, each in found.items() if each} == {}


@for_each(
    "source",
    [
        "import pickle", "from pickle import loads", "import marshal as m", "def f():\n    import dill",
        "import cloudpickle", "from multiprocessing import Queue", "eval('1')", "exec(text)", "compile(a, b, c)",
        "torch.load(path)", "socket.send_pyobj(1)", "load(x, trust_remote_code=True)", "np.load(x, allow_pickle=yes)",
        "subprocess.run(line, shell=True)",
    ],
)  # fmt: skip
def test_the_search_finds(source: str) -> None:
    assert MENTIONS(source) and list(faults(ast.parse(source)))


@pytest.mark.parametrize("source", ["model.eval()", "re.compile(x)", "load(x, trust_remote_code=False)", "import zmq"])
def test_the_search_lets_pass(source: str) -> None:
    assert not list(faults(ast.parse(source)))
