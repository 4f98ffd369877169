"""The build of a wheel compiles the kernels, where there is a C++ compiler; without one the wheel is all the same good.

CHAIRLIFT_BUILD_KERNELS=required makes a build without them fail, CHAIRLIFT_BUILD_KERNELS=none leaves them out.
"""

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src/chairlift/model/kernels/cpu")


class Kernels(BuildHookInterface[Any]):
    """Compiles src/chairlift/model/kernels/cpu into a library that lies beside its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say that the wheel is for this kind of machine only; `version` is "standard" or "editable"."""
        wanted = os.environ.get("CHAIRLIFT_BUILD_KERNELS", "")
        if wanted == "none":
            return
        folder = Path(self.root) / KERNELS
        spec = importlib.util.spec_from_file_location("compile_kernels", folder / "compile.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        library = folder / module.LIBRARY
        try:
            if not (library.exists() and module.is_current(library)):
                module.compile_library(library)
        except module.CannotCompile as error:
            if wanted == "required":
                raise
            self.app.display_warning(f"Chairlift is built without its native kernels: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(f"/{KERNELS}/{module.LIBRARY}")
