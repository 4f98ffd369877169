"""RoutingRequest: matched tokens end with the last matched hash; without token counts there are none."""

from chairlift.router.policies.routing_request import RoutingRequest


def test_matched_tokens_end_with_the_last_matched_hash() -> None:
    request = RoutingRequest(
        prefix=(b"1", b"2", b"3"), prefix_tokens=(10, 20, 50), prompt_tokens=55,
        prefix_matches={"a": 1, "c": 3, "d": 9, "e": 0},
    )  # fmt: skip
    assert [request.matched_tokens(name) for name in "abcde"] == [10, 0, 50, 50, 0]


def test_no_token_counts_mean_no_known_tokens() -> None:
    assert RoutingRequest(prefix=(b"1",), prefix_matches={"a": 1}).matched_tokens("a") == 0
