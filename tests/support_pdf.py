"""PDFs that tests write: pages with lines of text, or with text in a font of a predefined encoding."""

from collections.abc import Sequence

HELVETICA = ("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",)


def pdf_of(pages: Sequence[str], *, is_protected: bool = False) -> bytes:
    """Return a PDF with lines of text on each page, or with a box where it is ""; they must fit on the page."""
    drawn = []
    for text in pages:
        lines = " 0 -1 Td ".join(f"({line}) Tj" for line in text.split("\n"))
        drawn.append(f"BT /F1 1 Tf 72 700 Td {lines} ET" if text else "72 72 200 200 re f")
    return document(HELVETICA, drawn, is_protected=is_protected)


def pdf_in(encoding: str, ordering: str, encoded: bytes) -> bytes:
    """Return a PDF with a line of text in a font that is not in it, with an encoding and a collection of Adobe's."""
    fonts = (
        f"<< /Type /Font /Subtype /Type0 /BaseFont /Test /Encoding /{encoding} /DescendantFonts [4 0 R] >>",
        "<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Test /FontDescriptor 5 0 R "
        f"/CIDSystemInfo << /Registry (Adobe) /Ordering ({ordering}) /Supplement 2 >> >>",
        "<< /Type /FontDescriptor /FontName /Test /Flags 4 /FontBBox [0 -200 1000 900] /ItalicAngle 0 /Ascent 900 "
        "/Descent -200 /CapHeight 800 /StemV 80 >>",
    )
    return document(fonts, [f"BT /F1 12 Tf 72 700 Td <{encoded.hex()}> Tj ET"])


def document(fonts: Sequence[str], drawn: Sequence[str], *, is_protected: bool = False) -> bytes:
    """Return a PDF of pages that draw with the first of the fonts, which is the object 3; the others are behind it."""
    first = 3 + len(fonts)
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(drawn)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(drawn)} >>", *fonts,
    ]  # fmt: skip
    for number, content in enumerate(drawn):
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {first + 1 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    body, offsets = "%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    lock = f"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{'ab' * 32}> /U <{'cd' * 32}> >> /ID [<00> <00>]"
    size = len(objects) + 1
    body += f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R "
    body += f"{lock if is_protected else ''} >>\nstartxref\n{body.index('xref')}\n%%EOF"
    return body.encode("latin-1")
