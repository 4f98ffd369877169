"""decode_kernel, reduce_kernel, extend_kernel, write_kv_kernel: grouped-query attention over the paged KV cache.

A tile of query rows has one KV head's query heads: row = query token * HEADS + head of the group. So all rows of a tile
use the same keys, which are read once.

    decode_kernel   one tile for each KV head, row and split of its keys; a lone split writes the output
    reduce_kernel   adds the splits of a row's head up, always in the same order
    extend_kernel   tiles of up to TILE_ROWS query rows of a chunk; tokens after the last chunk get zeros

    keys of a tile of an extend row     |   masked   |   visible to all its tokens   |   masked   |
                                        window's edge                                 causal edge

Keys outside [first, limit) are never read: neither their block table entries nor the cache. A cache of 8-bit floats
(e4m3) is widened to the type of the queries when a tile is loaded. Softmax is in float32, base
2. Sinks are the first value of a row's running maximum and sum. Tiles of keys begin at multiples of TILE_KEYS, so that
a token's sums do not depend on where its chunk begins.
"""

import triton
import triton.language as tl

LOWEST: tl.constexpr = tl.constexpr(-3.0e38)
"""Running maximum of a row without keys; finite, so that no difference of two is NaN."""

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)

REDUCE_SPLITS = 16
"""Splits that reduce_kernel loads at once."""

FLOAT8_LIMIT: tl.constexpr = tl.constexpr(448.0)
"""Largest number of float8e4nv, torch's float8_e4m3fn, which has no infinity."""

WRITE_HEADS = 16
"""KV heads that one program of write_kv_kernel writes."""

_RUNTIME = ["window", "score_scale", "cap", "max_splits", "min_tiles", "num_splits", "first_row", "num_rows",
            "num_tokens", "stride_table"]  # fmt: skip
"""Numbers that change between steps or layers: their values make no new variant of a kernel."""

_VIEWS = ["block_table", "cu_seqlens", "seq_lens", "slot_mapping"]
"""Tensors that may begin within another one, as those of a layer group do: where makes no new variant, either."""


@triton.jit
def as_stored(numbers, cache):
    """Return numbers in the type of the cache; in 8 bits those beyond its limits become the limits, NaN stays NaN."""
    if cache.dtype.element_ty == tl.float8e4nv:
        wide = numbers.to(tl.float32)
        numbers = tl.clamp(wide, -FLOAT8_LIMIT, FLOAT8_LIMIT, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(cache.dtype.element_ty)


@triton.jit
def _visit_keys(
    query, attended, highest, total, position, begin, end, first, limit, key_cache, value_cache, table,
    window, score_scale, cap,
    STRIDE_BLOCK: tl.constexpr, STRIDE_SLOT: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr, TILE_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to the running sums; only a MASKED visit excludes what a row must not see."""
    columns = tl.arange(0, WIDTH)
    for start in range(begin, end, TILE_KEYS):
        at = start + tl.arange(0, TILE_KEYS)
        if MASKED:
            loaded = (at >= first) & (at < limit)
            blocks = tl.load(table + at // BLOCK_SIZE, mask=loaded, other=0)
        else:
            blocks = tl.load(table + at // BLOCK_SIZE)
        # In 64 bits: a cache may have more than 2**31 elements.
        offsets = (blocks.to(tl.int64) * STRIDE_BLOCK + at % BLOCK_SIZE * STRIDE_SLOT)[:, None] + columns[None, :]
        if MASKED:
            wanted = loaded[:, None] & (columns < HEAD_DIM)[None, :]
            key = tl.load(key_cache + offsets, mask=wanted, other=0.0)
            value = tl.load(value_cache + offsets, mask=wanted, other=0.0)
        elif HEAD_DIM != WIDTH:
            key = tl.load(key_cache + offsets, mask=(columns < HEAD_DIM)[None, :], other=0.0)
            value = tl.load(value_cache + offsets, mask=(columns < HEAD_DIM)[None, :], other=0.0)
        else:
            key = tl.load(key_cache + offsets)
            value = tl.load(value_cache + offsets)
        key, value = key.to(query.dtype), value.to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * score_scale
        if HAS_CAP:  # cap * tanh; score_scale has the factor of its exponent
            scores = cap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
        if MASKED:
            visible = (at[None, :] <= position[:, None]) & (at < limit)[None, :]
            if HAS_WINDOW:
                visible = visible & (at[None, :] > position[:, None] - window)
            scores = tl.where(visible, scores, float("-inf"))
        # A row that sees none of these keys keeps LOWEST, which is finite: its weights are exp2(-inf) = 0 and not NaN.
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        shrink = tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights, 1)
        attended = attended * shrink[:, None]
        attended = tl.dot(weights.to(value.dtype), value, attended, input_precision=PRECISION)
        highest = new_highest
    return attended, highest, total


@triton.jit
def _start_sums(sinks, head, is_row, ROWS: tl.constexpr, WIDTH: tl.constexpr, HAS_SINKS: tl.constexpr):
    """Return sums, maxima and totals of rows that have seen no key: of the sinks, or of nothing."""
    attended = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    if HAS_SINKS:
        highest = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        total = tl.full([ROWS], 1.0, dtype=tl.float32)
    else:
        highest = tl.full([ROWS], LOWEST, dtype=tl.float32)
        total = tl.zeros([ROWS], dtype=tl.float32)
    return attended, highest, total


@triton.jit
def _split(seq_len, window, max_splits, min_tiles, TILE_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Return a decode row's first visible key, the begin of its first split, and the keys of a split."""
    first = seq_len * 0
    if HAS_WINDOW:
        first = tl.maximum(seq_len - window, 0)
    begin = first // TILE_KEYS * TILE_KEYS
    tiles = tl.cdiv(seq_len - begin, TILE_KEYS)
    return first, begin, tl.maximum(tl.cdiv(tiles, max_splits), min_tiles) * TILE_KEYS


@triton.jit
def _heads_of(part, GROUP: tl.constexpr, HEADS: tl.constexpr):
    """Return the KV head of a part, its first query head, and the end of the KV head's query heads."""
    parts: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = part // parts
    return kv_head, kv_head * GROUP + part % parts * HEADS, (kv_head + 1) * GROUP


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_VIEWS)
def decode_kernel(
    query, key_cache, value_cache, block_table, seq_lens, sinks, out, partial, statistics,
    window, score_scale, cap, max_splits, min_tiles,
    STRIDE_QUERY: tl.constexpr, STRIDE_OUT: tl.constexpr, stride_table, STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr, STRIDE_HEAD: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    IS_SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend HEADS of one KV head's query heads, of a decode row's token, to one split of its keys.

    Grid: KV heads * parts of their GROUP heads, rows, splits.
    """
    row, split, num_splits = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    kv_head, first_head, end_head = _heads_of(tl.program_id(0), GROUP, HEADS)
    num_heads = tl.num_programs(0) // ((GROUP + HEADS - 1) // HEADS) * GROUP
    seq_len = tl.load(seq_lens + row)
    first, begin, size = _split(seq_len, window, max_splits, min_tiles, TILE_KEYS, HAS_WINDOW)
    begin += split * size
    end = tl.minimum(begin + size, seq_len)
    # Shorter rows have fewer splits than are launched; reduce_kernel reads only those that `used` counts.
    if IS_SPLIT and begin >= end:
        return
    rows, columns = tl.arange(0, TILE_ROWS), tl.arange(0, WIDTH)
    head = first_head + rows
    is_row = (rows < HEADS) & (head < end_head)
    is_element = is_row[:, None] & (columns < HEAD_DIM)[None, :]
    offsets = head[:, None] * HEAD_DIM + columns[None, :]
    tile = tl.load(query + row.to(tl.int64) * STRIDE_QUERY + offsets, mask=is_element, other=0.0)
    attended, highest, total = _start_sums(sinks, head, is_row, TILE_ROWS, WIDTH, HAS_SINKS)
    if HAS_SINKS:
        # The sinks count once for each row, whatever the number of its splits.
        highest = tl.where(split == 0, highest, LOWEST)
        total = tl.where(split == 0, total, 0.0)
    attended, highest, total = _visit_keys(
        tile, attended, highest, total, rows * 0 + (seq_len - 1), begin, end, first, end,
        key_cache + kv_head * STRIDE_HEAD, value_cache + kv_head * STRIDE_HEAD,
        block_table + row.to(tl.int64) * stride_table, window, score_scale, cap, STRIDE_BLOCK, STRIDE_SLOT, BLOCK_SIZE,
        HEAD_DIM, WIDTH, TILE_KEYS, HAS_WINDOW, HAS_CAP, True, PRECISION,
    )  # fmt: skip
    if IS_SPLIT:
        at = (row.to(tl.int64) * num_heads + head) * num_splits + split
        tl.store(partial + at[:, None] * HEAD_DIM + columns[None, :], attended, mask=is_element)
        tl.store(statistics + at * 2, highest, mask=is_row)
        tl.store(statistics + at * 2 + 1, total, mask=is_row)
    else:
        # Padding rows have no key: their result is 0 / 1.
        result = attended / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + row.to(tl.int64) * STRIDE_OUT + offsets, result.to(out.dtype.element_ty), mask=is_element)


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_VIEWS)
def reduce_kernel(
    partial, statistics, seq_lens, out, window, max_splits, min_tiles, num_splits, STRIDE_OUT: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TILE_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Add up the splits of one decode row's query head. Grid: query heads, rows."""
    head, row = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + row)
    _, begin, size = _split(seq_len, window, max_splits, min_tiles, TILE_KEYS, HAS_WINDOW)
    used = tl.cdiv(seq_len - begin, size)
    columns = tl.arange(0, WIDTH)
    base = (row.to(tl.int64) * tl.num_programs(0) + head) * num_splits
    highest, total = tl.full([], LOWEST, tl.float32), tl.full([], 0.0, tl.float32)
    attended = tl.zeros([WIDTH], dtype=tl.float32)
    for start in range(0, used, SPLITS):
        split = start + tl.arange(0, SPLITS)
        is_used = split < used
        # Splits that are not used were never written: they count as splits without keys.
        maxima = tl.load(statistics + (base + split) * 2, mask=is_used, other=LOWEST)
        totals = tl.load(statistics + (base + split) * 2 + 1, mask=is_used, other=0.0)
        is_element = is_used[:, None] & (columns < HEAD_DIM)[None, :]
        sums = tl.load(partial + (base + split)[:, None] * HEAD_DIM + columns[None, :], mask=is_element, other=0.0)
        new_highest = tl.maximum(highest, tl.max(maxima, 0))
        weights, shrink = tl.exp2(maxima - new_highest), tl.exp2(highest - new_highest)
        total = total * shrink + tl.sum(weights * totals, 0)
        attended = attended * shrink + tl.sum(weights[:, None] * sums, 0)
        highest = new_highest
    result = attended / tl.where(total == 0.0, 1.0, total)
    target = out + row.to(tl.int64) * STRIDE_OUT + head * HEAD_DIM + columns
    tl.store(target, result.to(out.dtype.element_ty), mask=columns < HEAD_DIM)


@triton.jit
def _row_of_tile(cu_seqlens, first_token, num_rows, tile, TILE_TOKENS: tl.constexpr):
    """Return which of num_rows + 1 rows a tile is of; row i owns the tiles from (its first token // size) + i on."""
    # No host may read cu_seqlens, as a graph can hold the launch: each program finds its row by bisection.
    low, high = tile * 0, num_rows
    while low < high:
        middle = (low + high + 1) // 2
        if (tl.load(cu_seqlens + middle) - first_token) // TILE_TOKENS + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _chunk_range(lowest, end, window, TILE_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Return the first visible key, its tile, and the tiles [common, whole) that all tokens from `lowest` on see."""
    first, begin, common = lowest * 0, lowest * 0, lowest * 0
    if HAS_WINDOW:
        first = tl.maximum(lowest - window + 1, 0)
        begin = first // TILE_KEYS * TILE_KEYS
        common = tl.maximum(tl.cdiv(tl.maximum(end - window, 0), TILE_KEYS) * TILE_KEYS, begin)
    # The token at `lowest` sees the keys up to its own, and so do all later tokens of the tile.
    whole = tl.maximum((lowest + 1) // TILE_KEYS * TILE_KEYS, common)
    if end <= 0:
        begin, common, whole = end, end, end
    return first, begin, common, whole


@triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_VIEWS)
def extend_kernel(
    query, key_cache, value_cache, block_table, cu_seqlens, seq_lens, sinks, out,
    window, score_scale, cap, first_row, num_rows, num_tokens,
    STRIDE_QUERY: tl.constexpr, STRIDE_OUT: tl.constexpr, stride_table, STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr, STRIDE_HEAD: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend a tile of one chunk's tokens, HEADS of one KV head's query heads. Grid: tiles, KV heads * parts.

    The num_rows chunks begin at row first_row of cu_seqlens, seq_lens and block_table. The tokens behind them, up to
    num_tokens, are padding: a row without keys.
    """
    cu_seqlens += first_row
    seq_lens += first_row
    block_table += first_row * stride_table.to(tl.int64)
    tile_tokens: tl.constexpr = TILE_ROWS // HEADS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # tiles with many keys start early
    kv_head, first_head, end_head = _heads_of(tl.program_id(1), GROUP, HEADS)
    first_token = tl.load(cu_seqlens)
    row = _row_of_tile(cu_seqlens, first_token, num_rows, tile, tile_tokens)
    row_begin, row_end = tl.load(cu_seqlens + row), tl.load(cu_seqlens + row + 1, mask=row < num_rows, other=num_tokens)
    start = (tile - (row_begin - first_token) // tile_tokens - row) * tile_tokens
    if row_begin + start >= row_end:
        return  # the grid has one tile more for each row than some rows need
    seq_len = tl.load(seq_lens + row, mask=row < num_rows, other=0)
    rows, columns = tl.arange(0, TILE_ROWS), tl.arange(0, WIDTH)
    token, head = row_begin + start + rows // HEADS, first_head + rows % HEADS
    is_row = (rows < tile_tokens * HEADS) & (token < row_end) & (head < end_head)
    is_element = is_row[:, None] & (columns < HEAD_DIM)[None, :]
    offsets = head[:, None] * HEAD_DIM + columns[None, :]
    queries = tl.load(query + token.to(tl.int64)[:, None] * STRIDE_QUERY + offsets, mask=is_element, other=0.0)

    lowest = seq_len - (row_end - row_begin) + start  # positions of the tile's first and last tokens
    position = lowest + rows // HEADS
    end = tl.minimum(lowest + tile_tokens, seq_len)
    first, begin, common, whole = _chunk_range(lowest, end, window, TILE_KEYS, HAS_WINDOW)
    keys, values = key_cache + kv_head * STRIDE_HEAD, value_cache + kv_head * STRIDE_HEAD
    table = block_table + row.to(tl.int64) * stride_table
    attended, highest, total = _start_sums(sinks, head, is_row, TILE_ROWS, WIDTH, HAS_SINKS)
    if HAS_WINDOW:
        attended, highest, total = _visit_keys(
            queries, attended, highest, total, position, begin, common, first, end, keys, values, table, window,
            score_scale, cap, STRIDE_BLOCK, STRIDE_SLOT, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE_KEYS, HAS_WINDOW, HAS_CAP,
            True, PRECISION,
        )  # fmt: skip
    attended, highest, total = _visit_keys(
        queries, attended, highest, total, position, common, whole, first, end, keys, values, table, window,
        score_scale, cap, STRIDE_BLOCK, STRIDE_SLOT, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE_KEYS, HAS_WINDOW, HAS_CAP,
        False, PRECISION,
    )  # fmt: skip
    attended, highest, total = _visit_keys(
        queries, attended, highest, total, position, whole, end, first, end, keys, values, table, window,
        score_scale, cap, STRIDE_BLOCK, STRIDE_SLOT, BLOCK_SIZE, HEAD_DIM, WIDTH, TILE_KEYS, HAS_WINDOW, HAS_CAP,
        True, PRECISION,
    )  # fmt: skip
    result = attended / tl.where(total == 0.0, 1.0, total)[:, None]
    target = out + token.to(tl.int64)[:, None] * STRIDE_OUT + offsets
    tl.store(target, result.to(out.dtype.element_ty), mask=is_element)


@triton.jit(do_not_specialize_on_alignment=_VIEWS)
def write_kv_kernel(
    key, value, key_cache, value_cache, slot_mapping, stride_key, stride_value, STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr, STRIDE_HEAD: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_HEADS: tl.constexpr,
):  # fmt: skip
    """Store one token's keys and values of TILE_HEADS KV heads at its slot. Grid: tokens, tiles of heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot < 0:
        return
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    columns = tl.arange(0, WIDTH)
    is_element = (heads < KV_HEADS)[:, None] & (columns < HEAD_DIM)[None, :]
    source = heads[:, None] * HEAD_DIM + columns[None, :]
    target = slot // BLOCK_SIZE * STRIDE_BLOCK + slot % BLOCK_SIZE * STRIDE_SLOT
    target += heads[:, None] * STRIDE_HEAD + columns[None, :]
    new_key = tl.load(key + token * stride_key + source, mask=is_element)
    new_value = tl.load(value + token * stride_value + source, mask=is_element)
    tl.store(key_cache + target, as_stored(new_key, key_cache), mask=is_element)
    tl.store(value_cache + target, as_stored(new_value, value_cache), mask=is_element)
