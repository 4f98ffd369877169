"""Products of Triton's interpreter with a fixed order of additions, in place of numpy's.

The interpreter multiplies tiles by numpy, whose BLAS may add up a row in another order at another place of a tile: what
it does depends on the processor. Tests of bits are about the order of the kernels, so the order inside of a product of
two tiles must be one. Here halves of the terms are added to each other until one is left.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

INTERPRETER = "triton.runtime.interpreter"


def fixed_order_product(a: NDArray[Any], b: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return a [..., M, K] times b [..., K, N] as `dtype`; K is a power of two, as in every tile of Triton."""
    terms = a.astype(dtype)[..., :, :, None] * b.astype(dtype)[..., None, :, :]
    while (size := terms.shape[-2]) > 1:
        terms = terms[..., : size // 2, :] + terms[..., size // 2 :, :]
    return terms[..., 0, :]


def fix_products(interpreter: ModuleType) -> None:
    """Replace the product of the interpreter's module."""

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        values = [each.data for each in (a, b)]
        if any(each.dtype.primitive_bitwidth == 8 and each.dtype.is_floating() for each in (a, b)):
            half = interpreter.tl.float16
            values = [interpreter._convert_float(each.data, each.dtype, half, None).view(np.float16) for each in (a, b)]
        product = fixed_order_product(*values, d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


class InterpreterFinder:
    """Finds the interpreter's module for its first import, and replaces its product once the module has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the module's spec; None for every other module."""
        if name != INTERPRETER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            fix_products(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def fix_products_at_import() -> None:
    """Replace the interpreter's product as soon as something imports it."""
    if INTERPRETER in sys.modules:
        fix_products(sys.modules[INTERPRETER])
    else:
        sys.meta_path.insert(0, InterpreterFinder())
