// Tile registers of AMX: 16 rows of 64 bytes each, and products of two of them.
//
// CHAIRLIFT_EMULATES_AMX: a test of the kernels for AMX on a processor without it.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

constexpr int TILE_ROWS = 16, TILE_BYTES = 64;

// How many rows each of the 8 tiles has.
struct alignas(64) TileRows {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES};
    uint8_t rows[16] = {};
};

#if defined(CHAIRLIFT_EMULATES_AMX)

struct EmulatedTiles {
    TileRows sizes;
    uint32_t words[8][TILE_ROWS][TILE_BYTES / 4];
};
static thread_local EmulatedTiles emulated;

static void set_tile_rows(const TileRows& sizes) { emulated = {sizes, {}}; }
static void release_tiles() {}

template <int TILE>
static void zero_tile() {
    memset(emulated.words[TILE], 0, sizeof emulated.words[TILE]);
}

template <int TILE>
static void load_tile(const void* from, size_t stride) {
    zero_tile<TILE>();
    for (int row = 0; row < emulated.sizes.rows[TILE]; row++)
        memcpy(emulated.words[TILE][row], (const char*)from + row * stride, TILE_BYTES);
}

template <int TILE>
static void store_tile(float* to, size_t stride) {
    for (int row = 0; row < emulated.sizes.rows[TILE]; row++)
        memcpy((char*)to + row * stride, emulated.words[TILE][row], TILE_BYTES);
}

static float number(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <int SUMS, int ROWS, int COLUMNS>
static void add_products() {
    for (int row = 0; row < emulated.sizes.rows[SUMS]; row++)
        for (int column = 0; column < TILE_BYTES / 4; column++) {
            float even = 0, odd = 0;
            for (int pair = 0; pair < TILE_ROWS; pair++) {
                const uint32_t left = emulated.words[ROWS][row][pair], right = emulated.words[COLUMNS][pair][column];
                even += number(left << 16) * number(right << 16);
                odd += number(left & 0xffff0000) * number(right & 0xffff0000);
            }
            const float sum = number(emulated.words[SUMS][row][column]) + (even + odd);
            memcpy(&emulated.words[SUMS][row][column], &sum, sizeof sum);
        }
}

#else

// The intrinsics do not say which memory they read and write, so a compiler would move other accesses past them.
CHAIRLIFT_INLINE void order_accesses(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

CHAIRLIFT_INLINE void set_tile_rows(const TileRows& sizes) {
    order_accesses(&sizes);
    _tile_loadconfig(&sizes);
}

CHAIRLIFT_INLINE void release_tiles() { _tile_release(); }

// The intrinsics are macros that take literals.
#define CHAIRLIFT_TILE_OPERATIONS(TILE)                                        \
    template <>                                                                \
    CHAIRLIFT_INLINE void zero_tile<TILE>() { _tile_zero(TILE); }              \
    template <>                                                                \
    CHAIRLIFT_INLINE void load_tile<TILE>(const void* from, size_t stride) {   \
        order_accesses(from);                                                  \
        _tile_loadd(TILE, from, stride);                                       \
    }                                                                          \
    template <>                                                                \
    CHAIRLIFT_INLINE void store_tile<TILE>(float* to, size_t stride) {         \
        _tile_stored(TILE, to, stride);                                        \
        order_accesses(to);                                                    \
    }

template <int TILE>
CHAIRLIFT_INLINE void zero_tile();
template <int TILE>
CHAIRLIFT_INLINE void load_tile(const void* from, size_t stride);
template <int TILE>
CHAIRLIFT_INLINE void store_tile(float* to, size_t stride);
CHAIRLIFT_TILE_OPERATIONS(0)
CHAIRLIFT_TILE_OPERATIONS(1)
CHAIRLIFT_TILE_OPERATIONS(2)
CHAIRLIFT_TILE_OPERATIONS(3)
CHAIRLIFT_TILE_OPERATIONS(4)
CHAIRLIFT_TILE_OPERATIONS(5)
CHAIRLIFT_TILE_OPERATIONS(6)
CHAIRLIFT_TILE_OPERATIONS(7)
#undef CHAIRLIFT_TILE_OPERATIONS

// Adds to SUMS: its row r and column c gets the products of row r of ROWS and column c of COLUMNS.
template <int SUMS, int ROWS, int COLUMNS>
CHAIRLIFT_INLINE void add_products();

#define CHAIRLIFT_TILE_PRODUCTS(SUMS, ROWS, COLUMNS) \
    template <>                                      \
    CHAIRLIFT_INLINE void add_products<SUMS, ROWS, COLUMNS>() { _tile_dpbf16ps(SUMS, ROWS, COLUMNS); }

CHAIRLIFT_TILE_PRODUCTS(0, 4, 6)
CHAIRLIFT_TILE_PRODUCTS(1, 4, 7)
CHAIRLIFT_TILE_PRODUCTS(2, 5, 6)
CHAIRLIFT_TILE_PRODUCTS(3, 5, 7)
CHAIRLIFT_TILE_PRODUCTS(2, 4, 5)
CHAIRLIFT_TILE_PRODUCTS(3, 4, 6)
#undef CHAIRLIFT_TILE_PRODUCTS

#endif

}  // namespace chairlift::CHAIRLIFT_SET
