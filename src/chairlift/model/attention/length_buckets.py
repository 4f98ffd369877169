"""split_into_buckets: groups rows by length, so that rows computed together need little padding."""

from collections.abc import Sequence

PADDING_SHARE = 0.25
"""Part of a bucket that may be padding however large it is."""


def split_into_buckets(spans: Sequence[int], most: int, operation: int) -> list[tuple[int, ...]]:
    """Split rows into buckets of about equal spans.

    Args:
        spans: number of tokens visible to each row; a row with none is in no bucket.
        most: tokens of a bucket, with padding; a longer row is a bucket of its own.
        operation: padding tokens that cost less than another bucket.

    Returns rows by bucket, longest first; with a single bucket, in their original order.
    """
    rows = [row for row, span in enumerate(spans) if span]
    # Longest first: the first row of a bucket sets its width, and the others only add padding.
    order = sorted(rows, key=lambda row: -spans[row])
    buckets: list[list[int]] = []
    longest = padding = 0
    for row in order:
        more = longest - spans[row]
        fits = bool(buckets) and (len(buckets[-1]) + 1) * longest <= most
        if fits and padding + more <= max(operation, PADDING_SHARE * longest * len(buckets[-1])):
            buckets[-1].append(row)
            padding += more
        else:
            buckets.append([row])
            longest, padding = spans[row], 0
    return [tuple(rows)] if len(buckets) == 1 else [tuple(bucket) for bucket in buckets]
