"""LayerGroups: layers of one window together, in groups of equal size, each layer with its own index."""

import random

from chairlift.model.config.layer_groups import LayerGroups
from support_shares import for_each


def test_a_uniform_model_is_one_group() -> None:
    assert LayerGroups.of([None] * 3) == LayerGroups((None,), 3, ((0, 0), (0, 1), (0, 2)))
    assert LayerGroups.of([7, 7]) == LayerGroups((7,), 2, ((0, 0), (0, 1)))


def test_the_rarest_kind_sets_the_size_and_the_last_group_of_a_kind_may_be_short() -> None:
    groups = LayerGroups.of([5, 5, None, 5, None, 5, 5])
    assert groups.windows == (5, 5, 5, None)
    assert groups.layers_per_group == 2
    assert groups.places == ((0, 0), (0, 1), (3, 0), (1, 0), (3, 1), (1, 1), (2, 0))


@for_each("seed", range(20))
def test_every_layer_has_a_place_of_its_own_in_a_group_of_its_window(seed: int) -> None:
    dice = random.Random(seed)
    windows = [dice.choice((None, 4, 9)) for _ in range(dice.randint(1, 40))]
    groups = LayerGroups.of(windows)
    assert len(set(groups.places)) == len(windows)
    for window, (group, index) in zip(windows, groups.places, strict=True):
        assert groups.windows[group] == window
        assert 0 <= index < groups.layers_per_group
    assert {group for group, _ in groups.places} == set(range(len(groups.windows)))
