"""ForeignFlag: the values of other servers' flags, converted to those of our settings."""

from chairlift.cli.settings.foreign_flag import alias, no_effect, only, rejected, switch


def test_each_kind_of_row_has_what_it_needs() -> None:
    row = alias("--max-num-seqs -x", "max_running_requests", "vLLM")
    assert (row.flags, row.systems, row.key) == (("--max-num-seqs", "-x"), ("vLLM",), "max_num_seqs")
    assert row.metavar and not row.is_rejected and not row.option.neutral
    assert switch("--off", "overlap", False, "vLLM").constant is False
    assert not no_effect("--quiet-one", "why", "vLLM").metavar
    assert no_effect("--one", "why", "vLLM", takes_value=True).metavar
    assert only("--size", "1 auto", "why", "vLLM").option.neutral == ("1", "auto")
    assert rejected("--no", "why", "vLLM").is_rejected
