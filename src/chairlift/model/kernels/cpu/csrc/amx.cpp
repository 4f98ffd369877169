// The kernels of AMX: products of bfloat16 by tile registers; everything else is that of AVX-512.
//
//                          32 outputs: two tiles
//     16 steps            [ columns ][ columns ]
//     rows 0..15  [rows]  [  sums   ][  sums   ]      A tile product adds 16 steps of a row to its sum, in an order that
//     rows 16..31 [rows]  [  sums   ][  sums   ]      depends on nothing else. So a row has the same bits in any batch,
//                                                     and one row alone goes through tiles, too.
#include "amx_tiles.h"
#include "kernels.h"
#include "linear.h"
#include "peak.h"

namespace chairlift {

namespace CHAIRLIFT_SET {

constexpr int TILE_STEPS = TILE_BYTES / 4, TILE_OUTPUTS = TILE_BYTES / 4;
constexpr int MAX_BLOCK_ROWS = 2 * TILE_ROWS;

static const Kernels& other_kernels() {
#if defined(CHAIRLIFT_EMULATES_AMX)
    return *kernels_portable();
#else
    return *kernels_avx512_bf16();
#endif
}

// Prepares tiles for so many rows: up to 16 in tile 4, with sums in 0 to 3; those above 16 in tile 5, with sums in 2, 3.
static void configure(int rows) {
    const int first = rows < TILE_ROWS ? rows : TILE_ROWS, second = rows - TILE_ROWS;
    TileRows sizes;
    for (int tile = 0; tile < 8; tile++) {
        const bool has_columns = tile >= 6 || (tile == 5 && second <= 0);
        const bool has_second = second > 0 && (tile == 2 || tile == 3 || tile == 5);
        sizes.rows[tile] = has_columns ? TILE_ROWS : has_second ? second : first;
    }
    set_tile_rows(sizes);
}

// The lines of the panel ahead, of which a part is prefetched beside each tile.
struct LinesAhead {
    const uint8_t* next;
    int left, at_once;

    CHAIRLIFT_INLINE void prefetch_some() {
        const int count = left < at_once ? left : at_once;
        for (int line = 0; line < count; line++) prefetch(next + line * LINE);
        next += count * LINE, left -= count;
    }
};

// Adds the products of TILE_STEPS steps: of up to 16 rows and 32 or 64 outputs, or up to 32 rows and 32 outputs.
template <int ROW_TILES, int COLUMN_TILES>
CHAIRLIFT_INLINE void add_steps(
    const uint8_t* rows, size_t row_stride, const uint8_t* columns, size_t column_stride, LinesAhead& ahead) {
    load_tile<4>(rows, row_stride);
    load_tile<6>(columns, column_stride);
    ahead.prefetch_some();
    add_products<0, 4, 6>();
    load_tile<7>(columns + TILE_BYTES, column_stride);
    ahead.prefetch_some();
    add_products<1, 4, 7>();
    if constexpr (ROW_TILES == 2) {
        load_tile<5>(rows + TILE_ROWS * row_stride, row_stride);
        ahead.prefetch_some();
        add_products<2, 5, 6>();
        ahead.prefetch_some();
        add_products<3, 5, 7>();
    } else if constexpr (COLUMN_TILES == 4) {
        load_tile<5>(columns + 2 * TILE_BYTES, column_stride);
        ahead.prefetch_some();
        add_products<2, 4, 5>();
        load_tile<6>(columns + 3 * TILE_BYTES, column_stride);
        ahead.prefetch_some();
        add_products<3, 4, 6>();
    }
}

// Outputs of a panel that are multiplied at once, and the last steps of them, which fill no tile, before zeros.
struct Columns {
    const uint8_t* data;
    int outputs, last_count;
    alignas(64) uint8_t last_steps[TILE_STEPS * STEP_BYTES];

    Columns(const Weight& weight, int panel, int column, int outputs)
        : data(weight.data + panel * weight.panel_bytes() + column * 4), outputs(outputs),
          last_count(weight.steps % TILE_STEPS) {
        if (!last_count) return;
        memset(last_steps, 0, sizeof last_steps);
        for (int i = 0; i < last_count; i++)
            memcpy(last_steps + i * STEP_BYTES, data + (weight.steps - last_count + i) * STEP_BYTES, outputs * 4);
    }
};

// Multiplies `count` rows from `first` on.
template <int ROW_TILES, int COLUMN_TILES>
static void multiply_block(
    const LinearCall& call, int first, int count, const Columns& columns, LinesAhead& ahead, float* sums) {
    const size_t stride = call.rows.stride;
    const uint8_t* rows = call.rows.data + first * stride;
    zero_tile<0>(), zero_tile<1>();
    if constexpr (ROW_TILES * COLUMN_TILES == 4) zero_tile<2>(), zero_tile<3>();
    const int whole = call.weight->steps - columns.last_count;
    for (int step = 0; step < whole; step += TILE_STEPS)
        add_steps<ROW_TILES, COLUMN_TILES>(rows + 4 * step, stride, columns.data + step * STEP_BYTES, STEP_BYTES, ahead);
    if (columns.last_count) {
        alignas(64) uint8_t last_rows[MAX_BLOCK_ROWS * TILE_BYTES] = {};
        for (int r = 0; r < count; r++)
            memcpy(last_rows + r * TILE_BYTES, rows + r * stride + 4 * whole, 4 * columns.last_count);
        add_steps<ROW_TILES, COLUMN_TILES>(last_rows, TILE_BYTES, columns.last_steps, STEP_BYTES, ahead);
    }
    constexpr size_t STRIDE = PANEL * sizeof(float);
    store_tile<0>(sums, STRIDE), store_tile<1>(sums + TILE_OUTPUTS, STRIDE);
    if constexpr (ROW_TILES * COLUMN_TILES == 4) {
        float* others = sums + (ROW_TILES == 2 ? TILE_ROWS * PANEL : 2 * TILE_OUTPUTS);
        store_tile<2>(others, STRIDE), store_tile<3>(others + TILE_OUTPUTS, STRIDE);
    }
}

// Multiplies all rows by a panel or a half of it. `bytes` of a panel ahead are prefetched, evenly over the tiles.
static void multiply_columns(
    const LinearCall& call, int panel, int column, int outputs, const uint8_t* next, size_t bytes, ArgMax* argmax) {
    const Columns columns(*call.weight, panel, column, outputs);
    const int count = call.rows.count, num_blocks = (count + MAX_BLOCK_ROWS - 1) / MAX_BLOCK_ROWS;
    const int num_parts = 4 * num_blocks * ((call.weight->steps + TILE_STEPS - 1) / TILE_STEPS);
    const int num_lines = next ? (int)(bytes / LINE) : 0;
    LinesAhead ahead = {next, num_lines, (num_lines + num_parts - 1) / num_parts};
    alignas(64) float sums[MAX_BLOCK_ROWS * PANEL];
    for (int first = 0, configured = 0, rows; first < count; first += rows) {
        rows = count - first < MAX_BLOCK_ROWS ? count - first : MAX_BLOCK_ROWS;
        if (rows != configured) configure(rows), configured = rows;
        if (rows > TILE_ROWS)
            multiply_block<2, 2>(call, first, rows, columns, ahead, sums);
        else if (outputs == PANEL)
            multiply_block<1, 4>(call, first, rows, columns, ahead, sums);
        else
            multiply_block<1, 2>(call, first, rows, columns, ahead, sums);
        write_output(call, sums, rows, outputs, first, panel * PANEL + column, argmax);
    }
}

static void linear_by_tiles(
    const LinearCall& call, int half, int count, const uint8_t* ahead, size_t bytes, ArgMax* argmax) {
    if (call.weight->kind != BFLOAT16) return other_kernels().linear(call, half, count, ahead, bytes, argmax);
    if (call.rows.count == 0) return;
    if (count == 2 && call.rows.count <= TILE_ROWS) {
        multiply_columns(call, half / 2, 0, PANEL, ahead, bytes, argmax);
    } else {
        bytes /= count;
        for (int i = 0; i < count; i++) {
            const int column = (half + i) % 2 * HALF_PANEL;
            multiply_columns(call, (half + i) / 2, column, HALF_PANEL, ahead ? ahead + i * bytes : nullptr, bytes, argmax);
        }
    }
    release_tiles();
}

// Multiply-adds per second of tile products of full tiles.
static double peak_rate_by_tiles(WeightKind kind) {
    if (kind != BFLOAT16) return other_kernels().peak_rate(kind);
    constexpr int STEPS = 20'000;
    double best = 0;
    configure(MAX_BLOCK_ROWS);
    zero_tile<4>(), zero_tile<5>(), zero_tile<6>(), zero_tile<7>();
    for (int repeat = 0; repeat < 3; repeat++) {
        zero_tile<0>(), zero_tile<1>(), zero_tile<2>(), zero_tile<3>();
        const double began = thread_seconds();
        for (int step = 0; step < STEPS; step++) {
            add_products<0, 4, 6>(), add_products<1, 4, 7>();
            add_products<2, 5, 6>(), add_products<3, 5, 7>();
        }
        const double rate = (double)STEPS * 4 * TILE_ROWS * TILE_ROWS * 2 * TILE_STEPS / (thread_seconds() - began);
        best = rate > best ? rate : best;
    }
    release_tiles();
    return best;
}

}  // namespace CHAIRLIFT_SET

const Kernels* kernels_amx_bf16() {
    static const Kernels kernels = [] {
        Kernels made = CHAIRLIFT_SET::other_kernels();
        made.name = "amx_bf16";
        made.linear = CHAIRLIFT_SET::linear_by_tiles;
        made.peak_rate = CHAIRLIFT_SET::peak_rate_by_tiles;
        return made;
    }();
    return &kernels;
}

}  // namespace chairlift
