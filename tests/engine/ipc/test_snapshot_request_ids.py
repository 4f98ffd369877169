"""Client ids: a client sees its own ids as it gave them, and those of others behind their number."""

from dataclasses import replace

from chairlift.engine.batch_recorder import BatchRecorder
from chairlift.engine.ipc.snapshot_request_ids import display_id, with_ids, with_row_ids
from chairlift.engine.state_snapshot import scheduler_state
from support_engine import make_request, make_scheduler


def test_an_id_of_another_client_has_that_clients_number() -> None:
    assert display_id(1, 1, "mine") == "mine" and display_id(1, 2, "its") == "client 2: its"


def test_ids_are_replaced_everywhere_in_the_scheduler_state() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("engine-1", 3, 1, n=2), 0.0)
    scheduler.add_request(make_request("other", 3, 1), 0.0)
    state = with_ids(dict(scheduler_state(scheduler, 0.0)), {"engine-1": "mine"})
    assert state["waiting_order"] == ["mine", "other"] and state["states"]["mine"] == "pending"
    assert [each["choice"] for each in state["choices"]["mine"]] == [0, 1]
    assert "engine-1" not in str(state) and str(state).count("mine") == 5
    assert [each["request_id"] for each in state["sequences"]] == ["mine", "other"]


def test_rows_of_requests_that_have_ended_are_left_out() -> None:
    scheduler = make_scheduler()
    for name in ("7", "8"):
        scheduler.add_request(make_request(name, 4), 0.0)
    snapshot = BatchRecorder().snapshot(scheduler, 0.0)
    shown = with_row_ids(snapshot, {"8": "mine"}.get)
    assert [row.request_id for row in shown.rows] == ["mine"] and shown.rows[0].key == 1
    assert replace(shown, rows=snapshot.rows) == snapshot
