"""PDFs that tests write: pages with lines of text, or with text in a font of a predefined encoding."""

from collections.abc import Sequence

FIRST_FONT = 3  # the number of its object
HELVETICA = ("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",)


def pdf_of(pages: Sequence[str], *, is_protected: bool = False) -> bytes:
    """Return a PDF with lines of text on each page, or with a box where it is ""; they must fit on the page."""
    contents = []
    for text in pages:
        lines = " 0 -1 Td ".join(f"({line}) Tj" for line in text.split("\n"))
        contents.append(f"BT /F3 1 Tf 72 700 Td {lines} ET" if text else "72 72 200 200 re f")
    return document(HELVETICA, contents, [[FIRST_FONT]] * len(contents), is_protected=is_protected)


def pdf_in(encoding: str, ordering: str, encoded: bytes) -> bytes:
    """Return a PDF with a line of text in a font that is not in it, with an encoding and a collection of Adobe's."""
    return pdf_with_fonts([1], encoding, ordering, encoded)


def pdf_with_fonts(counts: Sequence[int], encoding: str, ordering: str, encoded: bytes) -> bytes:
    """Return a PDF of pages with so many fonts of their own, and the text in each; see pdf_in."""
    fonts = [
        "<< /Type /FontDescriptor /FontName /Test /Flags 4 /FontBBox [0 -200 1000 900] /ItalicAngle 0 /Ascent 900 "
        "/Descent -200 /CapHeight 800 /StemV 80 >>"
    ]
    names: list[list[int]] = []
    for count in counts:
        names.append([])
        for _ in range(count):
            number = FIRST_FONT + len(fonts)
            fonts += [
                "<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Test /FontDescriptor 3 0 R "
                f"/CIDSystemInfo << /Registry (Adobe) /Ordering ({ordering}) /Supplement 2 >> /W [9000 [{number}]] >>",
                f"<< /Type /Font /Subtype /Type0 /BaseFont /Test /Encoding /{encoding} "
                f"/DescendantFonts [{number} 0 R] >>",
            ]
            names[-1].append(number + 1)
    lines = [" 0 -0.5 Td ".join(f"/F{font} 1 Tf <{encoded.hex()}> Tj" for font in each) for each in names]
    return document(fonts, [f"BT 72 700 Td {line} ET" for line in lines], names)


def document(
    fonts: Sequence[str], contents: Sequence[str], names: Sequence[Sequence[int]], *, is_protected: bool = False
) -> bytes:
    """Return a PDF of pages with these content streams.

    The objects of the fonts are 3, 4 and so on. `names` are those that each page draws with: /F3 is the object 3.
    """
    first = FIRST_FONT + len(fonts)
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(contents)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>", *fonts,
    ]  # fmt: skip
    for number, (content, used) in enumerate(zip(contents, names, strict=True)):
        resources = " ".join(f"/F{font} {font} 0 R" for font in used)
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {first + 1 + 2 * number} 0 R "
            f"/Resources << /Font << {resources} >> >> >>",
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
