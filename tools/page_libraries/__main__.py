"""Write a file of the web page's libraries: `PYTHONPATH=tools python -m page_libraries KIND SOURCE TARGET`.

KIND is `character-maps` with the folder cmaps of the npm package pdfjs-dist, or `math-font` with latinmodern-math.otf.
The file goes into src/chairlift/ui/static/vendor, and its size and hash into VERSIONS.txt there.
"""

import argparse
import sys
from pathlib import Path

from page_libraries.character_maps import character_maps_zip


def main(words: list[str]) -> int:
    """Write one file; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="page_libraries", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("character-maps", "math-font"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args(words)
    try:
        content = _content(options.kind, options.source)
        options.target.write_bytes(content)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"page_libraries: {error}\n")
        return 1
    return 0


def _content(kind: str, source: Path) -> bytes:
    if kind == "character-maps":
        return character_maps_zip(source)
    from page_libraries.math_font import math_font  # fonttools is not installed everywhere

    return math_font(source)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
