"""round_robin_picker: takes replicas in turn, whatever their weights."""

from chairlift.router.policies.weighted import WeightedPicker


def round_robin_picker() -> WeightedPicker:
    """Return a picker that gives each replica the same number of requests."""
    return WeightedPicker(equal_weights=True)
