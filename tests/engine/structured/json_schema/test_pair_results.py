"""PairResults: results by the places of two schemas, negative ones for the depths at which they hold."""

from chairlift.engine.structured.json_schema.document import Node
from chairlift.engine.structured.json_schema.pair_results import PairResults

ONE, OTHER = Node({}, "/a", ""), Node({}, "/b", "")


def test_a_result_is_that_of_the_pair_and_its_types() -> None:
    results = PairResults()
    assert results.add(ONE, OTHER, 3, holds=True) is True
    assert [results.get(ONE, OTHER, depth) for depth in (0, 3, 5)] == [True] * 3
    texts = ONE.limited(frozenset({"string"}))
    for pair in ((OTHER, ONE), (texts, OTHER), (Node(True, "/a", ""), OTHER), (ONE, Node(True, "/b", ""))):
        assert results.get(*pair, 9) is None


def test_what_was_not_found_out_at_a_depth_is_tried_again_above_it() -> None:
    results = PairResults()
    assert results.add(ONE, OTHER, 3, holds=False) is False
    assert [results.get(ONE, OTHER, depth) for depth in (2, 3, 4)] == [None, False, False]
