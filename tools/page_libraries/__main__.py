"""Write a file of the web page's libraries: `PYTHONPATH=tools python -m page_libraries KIND SOURCE TARGET`.

KIND is `character-maps` with the folder cmaps of the npm package pdfjs-dist, or `math-font` with latinmodern-math.otf.
The file goes into src/chairlift/ui/static/vendor, and its size and hash into VERSIONS.txt there.
"""

import sys
from pathlib import Path

from page_libraries.character_maps import character_maps_zip


def main(kind: str, source: Path, target: Path) -> int:
    """Write one file; returns the exit code."""
    if kind == "character-maps":
        content = character_maps_zip(source)
    elif kind == "math-font":
        from page_libraries.math_font import math_font  # fonttools is not installed everywhere

        content = math_font(source)
    else:
        sys.stderr.write(f"{kind} is neither character-maps nor math-font\n")
        return 2
    target.write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
