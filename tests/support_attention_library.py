"""What the stand-ins for packages with attention share: attention over pages in torch, and parameters left alone."""

import ast
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


def refuse_others(function: Callable[..., Any], values: Mapping[str, Any], used: Set[str]) -> None:
    """Assert that all parameters but the used ones have their default values."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in used and name != "self" and parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            assert values[name] is parameter.default, f"the stand-in does not have {name}"


def attend_pages(
    query: Tensor, keys: Tensor, values: Tensor, pages: Tensor, length: int, *, scale: float, keys_before: int,
    cap: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attend the last tokens of a row to its keys, causally, in float64.

    Args:
        query: [T, heads, D].
        keys, values: [pages, page size, kv_heads, D].
        pages: the row's pages, in order.
        length: keys in them; those behind are not read.
        scale: factor on q·k.
        keys_before: keys before a token that it sees; -1 for all.
        cap: soft cap; 0 for none.

    Returns the result [T, heads, D], and the logarithms of the denominators [heads, T].
    """
    assert len(pages) and int(pages.min()) >= 0 and int(pages.max()) < len(keys), "a page that is not there"
    shared = query.shape[1] // keys.shape[2]
    key, value = (
        each[pages.long()].flatten(0, 1)[:length].double().repeat_interleave(shared, 1) for each in (keys, values)
    )
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    place, at = torch.arange(length), torch.arange(length - len(query), length)[:, None]
    hidden = place > at
    if keys_before >= 0:
        hidden |= place < at - keys_before
    scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value), scores.logsumexp(-1)


def installed_parameters(module: str, file: str, function: str) -> list[str]:
    """Return the parameters of an installed package's function, as "name" or "Class.name", without an import.

    Its last definition counts: those before may be overloads. Skips the test where the package is not installed.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} is not installed")
    source = (Path(spec.origin).parent / file).read_text(encoding="utf-8")
    owner, _, name = function.rpartition(".")
    body: list[ast.stmt] = ast.parse(source).body
    if owner:
        body = next(one.body for one in body if isinstance(one, ast.ClassDef) and one.name == owner)
    found = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == name]
    arguments = found[-1].args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def stand_in_parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a stand-in's parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_POSITIONAL]
