"""Write a file of the web page's libraries: `PYTHONPATH=tools python -m page_libraries character-maps FOLDER FILE`."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from page_libraries.character_maps import character_maps_zip

CONTENTS: Mapping[str, Callable[[Path], bytes]] = {"character-maps": character_maps_zip}
"""Kind of file -> what makes its content of a file or folder of the library's package."""


def main(kind: str, source: Path, target: Path) -> int:
    """Write one file; returns the exit code."""
    target.write_bytes(CONTENTS[kind](source))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
