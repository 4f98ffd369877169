"""RequestResult: what a status says of how a request ended."""

import pytest

from chairlift.observability.request_results import RequestResult


@pytest.mark.parametrize(
    ("statuses", "result"),
    [
        ((200, 204, 302), RequestResult.SUCCESS), ((400, 404, 422, 498), RequestResult.CLIENT_ERROR),
        ((429,), RequestResult.REJECTED), ((0, 499), RequestResult.ABORTED),
        ((500, 503, 504), RequestResult.SERVER_ERROR),
    ],
)  # fmt: skip
def test_a_status_is_one_result(statuses: tuple[int, ...], result: RequestResult) -> None:
    assert {RequestResult.of_status(status) for status in statuses} == {result}
