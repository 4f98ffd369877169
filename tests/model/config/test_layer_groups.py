"""LayerGroups: layers of one window and shape together, in pages of equal size; each layer has its own part of them."""

import random

from chairlift.model.config.layer_groups import AttentionShape, CachePlace, LayerGroups
from support_shares import for_each

SHAPE = AttentionShape(2, 16)


def grouped(*kinds: tuple[int, int | None, AttentionShape]) -> LayerGroups:
    """Return the groups of so many layers of each window and shape, one kind after the other."""
    layers = [(window, shape) for count, window, shape in kinds for _ in range(count)]
    return LayerGroups.of([window for window, _ in layers], [shape for _, shape in layers])


def test_a_uniform_model_is_one_group() -> None:
    parts = tuple(CachePlace(SHAPE, 32 * index) for index in range(3))
    places = tuple((0, index) for index in range(3))
    assert grouped((3, None, SHAPE)) == LayerGroups((None,), 96, parts, places)
    assert grouped((2, 7, SHAPE)) == LayerGroups((7,), 64, parts[:2], places[:2])


def test_the_rarest_kind_sets_the_size_and_the_last_group_of_a_kind_may_be_short() -> None:
    groups = LayerGroups.of([5, 5, None, 5, None, 5, 5], (SHAPE,) * 7)
    assert groups.windows == (5, 5, 5, None)
    assert len(groups.caches) == 2 and groups.page_width == 2 * 32 and not groups.has_several_shapes
    assert groups.places == ((0, 0), (0, 1), (3, 0), (1, 0), (3, 1), (1, 1), (2, 0))


@for_each("seed", range(20))
def test_every_layer_has_a_place_of_its_own_in_a_group_of_its_window(seed: int) -> None:
    dice = random.Random(seed)
    windows = [dice.choice((None, 4, 9)) for _ in range(dice.randint(1, 40))]
    shapes = {window: dice.choice((SHAPE, AttentionShape(1, 48))) for window in (None, 4, 9)}
    groups = LayerGroups.of(windows, [shapes[window] for window in windows])
    assert len(set(groups.places)) == len(windows)
    taken: dict[int, list[slice]] = {}
    for window, (group, index) in zip(windows, groups.places, strict=True):
        assert groups.windows[group] == window and groups.caches[index].shape == shapes[window]
        taken.setdefault(group, []).append(groups.caches[index].elements)
    assert set(taken) == set(range(len(groups.windows)))
    for parts in taken.values():
        elements = [element for part in parts for element in range(part.start, part.stop)]
        assert len(set(elements)) == len(elements) and max(elements) < groups.page_width


@for_each("seed", range(20))
def test_layers_of_one_shape_are_grouped_by_their_number_alone(seed: int) -> None:
    dice = random.Random(seed)
    windows = [dice.choice((None, 4, 9)) for _ in range(dice.randint(1, 40))]
    groups = LayerGroups.of(windows, (SHAPE,) * len(windows))
    fewest = min(windows.count(window) for window in set(windows))
    assert len(groups.caches) == fewest and groups.page_width == fewest * SHAPE.width
    assert len(groups.windows) == sum(-(-windows.count(window) // fewest) for window in set(windows))


def test_a_page_is_full_of_the_kind_with_the_fewest_elements() -> None:
    window, full = AttentionShape(16, 256), AttentionShape(4, 512)
    groups = grouped((50, 1024, window), (10, None, full))
    assert groups.page_width == 10 * 2048
    assert groups.windows == (1024,) * 10 + (None,) and groups.has_several_shapes
    assert [place.first_element for place in groups.caches if place.shape == window] == [0, 4096, 8192, 12288, 16384]
    assert [place.first_element for place in groups.caches if place.shape == full] == list(range(0, 20480, 2048))


def test_a_page_has_room_for_one_layer_of_each_kind() -> None:
    groups = grouped((12, 512, AttentionShape(1, 16)), (1, None, AttentionShape(2, 64)))
    assert groups.page_width == 128 and groups.windows == (512, 512, None)
    wide = grouped((1, 512, AttentionShape(1, 16)), (1, None, AttentionShape(2, 64)))
    assert wide.page_width == 128 and [place.first_element for place in wide.caches] == [0, 0]


def test_kinds_of_equal_widths_and_other_heads_have_parts_of_their_own() -> None:
    groups = grouped((4, 9, AttentionShape(4, 8)), (2, None, AttentionShape(2, 16)))
    assert groups.page_width == 64 and groups.windows == (9, 9, None)
    assert {groups.caches[index].shape.head_dim for _, index in groups.places[4:]} == {16}


def test_layers_without_keys_of_their_own_have_the_place_of_those_that_they_read() -> None:
    groups = LayerGroups.of([9, None, 9, None, 9], (SHAPE,) * 5, (None, None, None, 1, 2))
    assert groups.windows == (9, 9, None) and groups.page_width == 32
    assert groups.places == ((0, 0), (2, 0), (1, 0), (2, 0), (1, 0))
