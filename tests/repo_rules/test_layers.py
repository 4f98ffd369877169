"""Layers and forbidden imports: import-linter contracts, syntax trees, and imports with torch blocked."""

import ast
import subprocess
import sys
from pathlib import Path

from support_source_tree import ROOT, imported, module_name, package_files, shown, tree_of

WITHOUT_TORCH = (
    "core",
    "observability",
    "text",
    "protocol",
    "engine",
    "web",
    "llm",
    "server",
    "router",
    "cli",
    "autoscaler",
    "cluster",
    "fleet",
)

# `ray_calls` imports ray: it runs in a process of its own, only where ray is installed.

BLOCKER = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "ray") or name == "safetensors.torch":
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
failed = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(f"{name}: {error}")
sys.exit("\\n".join(failed) or 0)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_import_contracts_hold(tmp_path: Path) -> None:
    command = "from importlinter.cli import lint_imports_command as main; main()"
    done = python("-c", command, "--no-logo", "--cache-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_importing_chairlift_loads_no_torch() -> None:
    code = "import sys, chairlift; sys.exit(' '.join(name for name in sys.modules if name.startswith('torch')) or 0)"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_every_module_of_these_packages_can_be_imported_with_torch_blocked() -> None:
    modules = [
        module_name(path)
        for name in WITHOUT_TORCH
        for path in package_files(name)
        if path.stem not in ("__main__", "ray_calls")
    ]
    done = python("-c", BLOCKER, "chairlift", *modules)
    assert done.returncode == 0, done.stderr


def test_the_runners_settings_can_be_written_with_torch_blocked() -> None:
    done = python("-c", BLOCKER, "chairlift.model.config.runner_config")
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    done = python("-c", BLOCKER, "chairlift.model.attention.base")
    assert done.returncode == 1
    assert "torch is blocked" in done.stderr


def test_only_three_modules_and_the_driver_import_ray_and_the_others_need_none() -> None:
    importers = {
        shown(path)
        for path in package_files("")
        for name, _ in imported(tree_of(path))
        if name.partition(".")[0] == "ray"
    }
    folder = "src/chairlift/cluster/ray/"
    assert importers == {
        folder + name for name in ("driver_main.py", "fleet_owner.py", "ray_calls.py", "replica_actor.py")
    }
    modules = [module_name(path) for path in package_files("cluster") if path.stem != "ray_calls"]
    done = python("-c", BLOCKER, *modules)
    assert done.returncode == 0, done.stderr
    assert "ray is blocked" in python("-c", BLOCKER, "chairlift.cluster.ray.ray_calls").stderr


def test_core_imports_the_standard_library_and_itself_only() -> None:
    foreign = [
        f"{shown(path)}:{line} {name}"
        for path in package_files("core")
        for name, line in imported(tree_of(path))
        if not name.startswith("chairlift.core") and name.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert package_files("core") and foreign == []


def test_the_engine_never_imports_an_event_loop() -> None:
    """The contract sees whole packages only; zmq.asyncio is a part of one."""
    found = [
        f"{shown(path)}:{line} {name}"
        for path in package_files("engine")
        for name, line in imported(tree_of(path))
        if "asyncio" in name.split(".")
    ]
    assert package_files("engine") and found == []


def test_llm_reaches_the_model_only_in_build_and_only_inside_functions() -> None:
    """The settings are free of torch and may stand at the top."""
    found = []
    for path in package_files("llm"):
        tree = tree_of(path)
        inside = {
            line
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
            for _, line in imported(function)
        }
        for name, line in imported(tree):
            if not name.startswith("chairlift.model") or name.startswith("chairlift.model.config.runner_config"):
                continue
            if path.name not in {"build.py", "build_from_module.py", "model_inspection.py"} or line not in inside:
                found.append(f"{shown(path)}:{line} {name}")
    assert found == []
