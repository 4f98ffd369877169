"""Build hook: compiles the native kernels for a wheel. Without a C++ compiler the wheel is built without them.

CHAIRLIFT_BUILD_KERNELS=required makes such a build fail, CHAIRLIFT_BUILD_KERNELS=none leaves the kernels out, and
CHAIRLIFT_BUILD_KERNELS=processor compiles those of this machine's processor only.
"""

import importlib.util
import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src/chairlift/model/kernels/cpu")


class Kernels(BuildHookInterface[Any]):
    """Compiles src/chairlift/model/kernels/cpu into a library beside its sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library and tag the wheel for this platform; `version` is "standard" or "editable"."""
        mode = os.environ.get("CHAIRLIFT_BUILD_KERNELS", "")
        if mode == "none":
            return
        folder = Path(self.root) / KERNELS
        spec = importlib.util.spec_from_file_location("compile_kernels", folder / "compile.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        library = folder / module.LIBRARY
        try:
            module.compile_unless_current(library, mode)
        except module.CompileFailed as error:
            if mode == "required":
                raise
            self.app.display_warning(f"Chairlift is built without its native kernels: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(f"/{KERNELS}/{module.LIBRARY}")
