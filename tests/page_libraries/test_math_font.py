"""math_font: which characters the subset has, its primes and its name; and those of the font that the page loads."""

from pathlib import Path
from typing import Any

import pytest

from support_source_tree import PACKAGE

font_tools = pytest.importorskip("fontTools.ttLib", reason="fonttools is not installed")
builder = pytest.importorskip("fontTools.fontBuilder")
math_font = pytest.importorskip("page_libraries.math_font")
SHIPPED = PACKAGE / "ui" / "static" / "vendor"
SHOWN = "x+−±×÷·=≠≤≥≈∼∝∞∂∇∫∬∮∑∏√∪∩∈∉⊂⊆∅∀∃¬∧∨⊕⊗→⇒↦⟶⇔…⋯⋮⋱′″ℏℓℝℕℤℂ⟨⟩⌊⌋⌈⌉‖|∣αβγδεθλμπσφωΓΔΘΛΞΠΣΦΨΩ𝑎𝑧𝐀𝐳𝔸𝒜𝔄𝖠𝟎𝛼⏞⏟̂̄⃗"
CODES = {"x": 0x78, "minute": 0x2032, "small": None, "cyrillic": 0x416, "mathx": 0x1D465}


def font_file(path: Path) -> Path:
    """Write a font of squares, whose prime has another shape in superscripts."""
    font = builder.FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder([".notdef", *CODES])
    font.setupCharacterMap({code: name for name, code in CODES.items() if code is not None})
    pens = pytest.importorskip("fontTools.pens.ttGlyphPen")
    glyphs = {}
    for number, name in enumerate([".notdef", *CODES], 1):
        pen: Any = pens.TTGlyphPen(None)
        pen.moveTo((0, 0))
        for point in ((0, 100 * number), (100 * number, 100 * number)):
            pen.lineTo(point)
        pen.closePath()
        glyphs[name] = pen.glyph()
    font.setupGlyf(glyphs)
    font.setupHorizontalMetrics({name: (500 + number, 0) for number, name in enumerate(glyphs)})
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": "Whole Math", "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.addOpenTypeFeatures("feature ssty { sub minute from [small]; } ssty;")
    tables = pytest.importorskip("fontTools.ttLib.tables.otTables")
    math = tables.MATH()
    math.Version = 0x10000
    math.MathConstants = math.MathGlyphInfo = math.MathVariants = None
    font.font["MATH"] = font_tools.newTable("MATH")
    font.font["MATH"].table = math
    font.save(path)
    return path


def test_the_subset_has_characters_of_formulas_another_name_and_primes_for_superscripts(tmp_path: Path) -> None:
    subset = math_font.math_subset(font_file(tmp_path / "whole.ttf"))
    subset.save(tmp_path / "subset.ttf")
    font: Any = font_tools.TTFont(tmp_path / "subset.ttf")
    characters = font.getBestCmap()
    assert characters.keys() == {0x78, 0x2032, 0x1D465} and "MATH" in font
    assert font["hmtx"][characters[0x2032]][0] == 503, "the prime has the shape for superscripts"
    assert font["name"].getDebugName(1) == "Chairlift Math"
    del font["MATH"]
    font.save(tmp_path / "text.ttf")
    with pytest.raises(ValueError, match=r"text\.ttf has no table MATH: it must be latinmodern-math\.otf"):
        math_font.math_subset(tmp_path / "text.ttf")


def test_the_font_of_the_page_has_the_characters_of_formulas_and_a_shape_for_the_others() -> None:
    pytest.importorskip("brotli")
    (file,) = SHIPPED.glob("chairlift-math-*.woff2")
    font: Any = font_tools.TTFont(file)
    assert [each for each in SHOWN if ord(each) not in font.getBestCmap()] == []
    assert font["name"].getDebugName(1) == "Chairlift Math" and "GUST Font License" in font["name"].getDebugName(0)
    assert "MATH" in font
    glyphs = font.getGlyphSet()
    pen = pytest.importorskip("fontTools.pens.boundsPen").BoundsPen(glyphs)
    glyphs[".notdef"].draw(pen)
    assert pen.bounds == (50, 0, 450, 650), "a box for a character that no font has"
