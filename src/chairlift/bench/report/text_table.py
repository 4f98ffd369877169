"""text_table: lays out rows of cells in columns, and leaves out columns where a terminal is too narrow."""

from collections.abc import Collection, Iterator, Mapping, Sequence

GAP = "  "


def text_table(
    rows: Sequence[Mapping[str, str]], *, left: Collection[str], columns: int | None = None,
    least_important_first: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """Yield the headings and a line for each row.

    Args:
        rows: the cells of each row by heading, all with the same headings.
        left: headings of the columns that are aligned on the left.
        columns: width of the terminal; None for no limit.
        least_important_first: headings of the columns that may be left out, in this order, while the table is too wide.
    """
    if not rows:
        return
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    for name in least_important_first:
        if columns is None or sum(widths.values()) + len(GAP) * (len(widths) - 1) <= columns:
            break
        del widths[name]
    for row in [{name: name for name in widths}, *rows]:
        cells = (
            row[name].ljust(width) if name in left else row[name].rjust(width) for name, width in widths.items()
        )  # fmt: skip
        yield GAP.join(cells).rstrip()
