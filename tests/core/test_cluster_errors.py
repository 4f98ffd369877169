"""Errors of clusters: whether a retry helps."""

from chairlift.core.cluster_errors import ClusterDenied, ClusterFailed


def test_a_cluster_that_is_down_is_worth_a_retry_and_missing_rights_are_not() -> None:
    assert ClusterFailed("x").retryable
    assert not ClusterDenied("x").retryable
    assert issubclass(ClusterDenied, ClusterFailed)
