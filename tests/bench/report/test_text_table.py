"""text_table: columns are aligned, and the least important ones are left out until the table fits."""

from chairlift.bench.report.text_table import text_table

ROWS = [{"name": "a", "speed": "1.5", "share": "10%"}, {"name": "longer", "speed": "20.25", "share": "5%"}]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert list(text_table(ROWS, left={"name"})) == [
        "name    speed  share", "a         1.5    10%", "longer  20.25     5%",
    ]  # fmt: skip
    assert list(text_table([], left=())) == []


def test_a_narrow_table_leaves_out_what_is_least_important() -> None:
    order = ("speed", "share")
    for columns, headings in ((20, ["name", "speed", "share"]), (19, ["name", "share"]), (12, ["name"]), (3, ["name"])):
        first, *_ = text_table(ROWS, left={"name"}, columns=columns, least_important_first=order)
        assert first.split() == headings
