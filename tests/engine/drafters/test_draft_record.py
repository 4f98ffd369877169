"""DraftRecord: counts drafts by drafter."""

from chairlift.engine.drafters.draft_record import DraftRecord


def test_drafts_are_counted_by_drafter() -> None:
    record = DraftRecord()
    record.add("ngram", 4, 3)
    record.add("prediction", 2, 2)
    record.add("ngram", 5, 0)
    assert record.confirmed == {"ngram": 3, "prediction": 2} and record.rejected == {"ngram": 6, "prediction": 0}
    assert (record.num_confirmed, record.num_rejected) == (5, 6)
