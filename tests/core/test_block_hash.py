"""Block hashes: chained, rooted in model, adapter, tenant and salt, and never equal by concatenation."""

from hashlib import sha256
from itertools import product

from hypothesis import given
from hypothesis.strategies import integers, lists, text

from chairlift.core.block_hash import BlockHash, extend_block_hashes, root_hash


def chain(tokens: list[int], block_size: int = 2, root: BlockHash = b"root") -> list[BlockHash]:
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, root, tokens, block_size)
    return hashes


def test_only_full_blocks_have_a_name() -> None:
    assert [len(chain([1] * count, 3)) for count in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_the_same_block_behind_another_prefix_has_another_name() -> None:
    """Pitfall 12: the chain covers all tokens before, not the block alone."""
    assert chain([1, 2, 7, 8])[1] != chain([1, 3, 7, 8])[1]
    assert chain([7, 8, 7, 8])[0] != chain([7, 8, 7, 8])[1]


def test_model_adapter_tenant_and_salt_each_change_every_name() -> None:
    """Pitfalls 12 and 37."""
    roots = {root_hash(*parts) for parts in product(["m", "n"], ["", "a"], ["", "t"], ["", "s"])}
    assert len(roots) == 16
    assert len({name for root in roots for name in chain([1, 2, 3, 4], root=root)}) == 32


def test_no_salt_is_the_empty_one() -> None:
    assert root_hash("m", "a", "t") == root_hash("m", "a", "t", "")


def test_no_two_lists_of_parts_look_alike_however_they_are_cut() -> None:
    """Pitfall 12: "ab" + "c" is not "a" + "bc", also with lengths and separators inside the names."""
    parts = ["", "a", "ab", "b", "\0", "a\0", "\0a", "\x01\0\0\0\0\0\0\0", "\x01\0\0\0\0\0\0\0a", "é", "\ud800"]
    lists = list(product(parts, repeat=4))
    assert len({root_hash(*each) for each in lists}) == len(lists)


@given(text(), text(), text(), text())
def test_moving_a_border_changes_the_root(model: str, left: str, right: str, last: str) -> None:
    if right:
        assert root_hash(model, left + right, last) != root_hash(model, left, right + last)
        assert root_hash(model, "", left + right, last) != root_hash(model, "", left, right + last)


@given(lists(integers(0, 2**31 - 1), max_size=20), integers(1, 5), integers(0, 20))
def test_a_chain_that_grows_is_the_chain_of_the_whole(tokens: list[int], block_size: int, cut: int) -> None:
    hashes: list[BlockHash] = []
    extend_block_hashes(hashes, b"root", tokens[:cut], block_size)
    extend_block_hashes(hashes, b"root", tokens, block_size)
    assert hashes == chain(tokens, block_size)


def test_python_says_equal_hash_where_these_names_differ() -> None:
    """Pitfall 12: hash(-1) == hash(-2), so hash() is not used for blocks."""
    assert hash((-1, 0)) == hash((-2, 0)) and chain([-1, 0]) != chain([-2, 0])


def test_a_name_is_sha_256() -> None:
    assert {len(name) for name in [root_hash("", "", ""), *chain([1, 2])]} == {32}


def test_a_name_is_the_hash_of_the_name_before_and_the_tokens_as_64_bit_numbers() -> None:
    """Replicas and routers of any version agree on this."""
    first = sha256(b"root" + b"".join(token.to_bytes(8, "little") for token in (1, 2**40))).digest()
    second = sha256(first + b"".join(token.to_bytes(8, "little") for token in (0, 7))).digest()
    assert chain([1, 2**40, 0, 7, 9]) == [first, second]
