"""math_font: makes the math font of the web page, a subset of Latin Modern Math.

It needs the packages fonttools and brotli. The font is latinmodern-math.otf of Debian's package fonts-lmodern.
"""

import io
from pathlib import Path
from typing import Any

from fontTools import subset
from fontTools.pens.t2CharStringPen import T2CharStringPen
from fontTools.ttLib import TTFont

SUBSET_NAME = "Chairlift Math"
"""The name of the subset: the license asks for another name than that of the whole font."""

CHANGES = "A subset of Latin Modern Math, whose primes are those for superscripts; made by tools/page_libraries."

CHARACTERS = (
    (0x20, 0x7E), (0xA0, 0xFF), (0x131, 0x131), (0x237, 0x237), (0x2C6, 0x2DD), (0x300, 0x338), (0x391, 0x3F6),
    (0x2010, 0x2044), (0x2057, 0x2057), (0x20D0, 0x20F0), (0x2100, 0x214F), (0x2190, 0x21DD), (0x2200, 0x22FF),
    (0x2300, 0x2300), (0x2308, 0x230B), (0x231C, 0x231F),
    (0x2322, 0x2323), (0x23B0, 0x23B1), (0x23B4, 0x23B5), (0x23D0, 0x23D0), (0x23DC, 0x23E1), (0x25A0, 0x25A1),
    (0x25B2, 0x25BD), (0x25C0, 0x25CB), (0x25EF, 0x25EF), (0x2605, 0x2606), (0x2660, 0x2667), (0x266D, 0x266F),
    (0x27C2, 0x27C2), (0x27E6, 0x27EF), (0x27F5, 0x27FF), (0x29EB, 0x29EB), (0x2A00, 0x2A06), (0x2A09, 0x2A09),
    (0x2A0C, 0x2A0C), (0x2A0F, 0x2A0F), (0x2A3F, 0x2A3F), (0x2A7D, 0x2A7E), (0x2A85, 0x2A8C), (0x2AAF, 0x2ABA),
    (0x1D400, 0x1D467), (0x1D49C, 0x1D4B5),
    (0x1D504, 0x1D537), (0x1D538, 0x1D551), (0x1D55C, 0x1D55C), (0x1D5A0, 0x1D5D3), (0x1D6A4, 0x1D6A5),
    (0x1D6A8, 0x1D755), (0x1D7CE, 0x1D7D9),
)  # fmt: skip
"""First and last characters of the ranges that the subset has: text, Greek, arrows, operators, alphabets of formulas.

Left out are rare alphabets: small script and double-struck characters, bold fraktur and script, monospace.
"""

MISSING_WIDTH = 500
PRIMES = (0x2032, 0x2033, 0x2034, 0x2057)
COPYRIGHT_ID, VERSION_ID, DESCRIPTION_ID = 0, 5, 10
NAME_IDS = (1, 4, 16)


def math_font(file: Path) -> bytes:
    """Return the subset as WOFF2. Raises ValueError for a font without a table MATH."""
    font = math_subset(file)
    font.flavor = "woff2"
    content = io.BytesIO()
    font.save(content)
    return content.getvalue()


def math_subset(file: Path) -> Any:
    """Return the subset as a TTFont. Raises ValueError for a font without a table MATH."""
    font: Any = TTFont(file, recalcTimestamp=False)
    if "MATH" not in font:
        raise ValueError(f"{file} has no table MATH: it must be latinmodern-math.otf")
    use_primes_of_superscripts(font)
    options = subset.Options(
        notdef_outline=True, layout_features=[], hinting=False, glyph_names=False, drop_tables=["DSIG", "FFTM"],
        name_IDs=[COPYRIGHT_ID, VERSION_ID],
    )  # fmt: skip
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=[code for first, last in CHARACTERS for code in range(first, last + 1)])
    subsetter.subset(font)
    draw_missing_character(font)
    for name_id in NAME_IDS:
        font["name"].setName(SUBSET_NAME, name_id, 3, 1, 0x409)
    font["name"].setName(SUBSET_NAME.replace(" ", ""), 6, 3, 1, 0x409)
    font["name"].setName(CHANGES, DESCRIPTION_ID, 3, 1, 0x409)
    if "CFF " in font:
        rename_outlines(font["CFF "].cff)
    return font


def draw_missing_character(font: Any) -> None:
    """Draw a box for a character that no font of the system has: the glyph of Latin Modern Math for it is empty."""
    if "CFF " not in font:
        return
    glyphs = font["CFF "].cff.topDictIndex[0].CharStrings
    font["hmtx"][".notdef"] = (MISSING_WIDTH, 50)
    pen = T2CharStringPen(MISSING_WIDTH, None)
    for left, bottom, right, top, is_inner in ((50, 0, 450, 650, False), (90, 40, 410, 610, True)):
        corners = [(left, bottom), (left, top), (right, top), (right, bottom)]
        first, *others = corners[::-1] if is_inner else corners
        pen.moveTo(first)
        for corner in others:
            pen.lineTo(corner)
        pen.closePath()
    glyphs[".notdef"] = pen.getCharString(glyphs[".notdef"].private, glyphs.globalSubrs)


def use_primes_of_superscripts(font: Any) -> None:
    """Give the primes the shape of the feature ssty, because Temml writes them in superscripts only."""
    features = font["GSUB"].table.FeatureList.FeatureRecord if "GSUB" in font else []
    shapes: dict[str, str] = {}
    lookups = {index for each in features if each.FeatureTag == "ssty" for index in each.Feature.LookupListIndex}
    for index in sorted(lookups):
        for table in font["GSUB"].table.LookupList.Lookup[index].SubTable:
            shapes |= {name: alternates[0] for name, alternates in table.alternates.items()}
    for table in font["cmap"].tables:
        for code in PRIMES:
            if code in table.cmap:
                table.cmap[code] = shapes.get(table.cmap[code], table.cmap[code])


def rename_outlines(outlines: Any) -> None:
    """Put the name of the subset into the table of outlines, too."""
    outlines.fontNames = [SUBSET_NAME.replace(" ", "")]
    for each in outlines.topDictIndex:
        for field in [field for field in each.rawDict if field.endswith("Name")]:
            setattr(each, field, SUBSET_NAME)
