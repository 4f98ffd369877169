// Dot: the products of a panel's vectors and a row's words, and how both are prepared for them.
//
// A vector of a panel is multiplied by many rows, and a word of a row by many vectors, so that what can be prepared is
// done once for each.
#pragma once

#include <type_traits>

#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

// Keeps a vector in a register. Without it, compilers load the vector again for each use.
template <typename Vector>
CHAIRLIFT_INLINE void keep_in_register([[maybe_unused]] Vector& vector) {
#if defined(__AVX512F__)
    asm("" : "+v"(vector));
#elif defined(CHAIRLIFT_NEON)
    asm("" : "+w"(vector));
#endif
}

// Returns, per lane, sum + the four products of unsigned bytes of `left` and signed bytes of `right`.
CHAIRLIFT_INLINE Ints dot_quads(Ints sum, Ints left, Ints right) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)left, (__m512i)right);
#elif defined(__AVX512BW__)
    // Even and odd bytes apart, in 16 bits: maddubs would saturate the sum of two products.
    const __m512i even = _mm512_set1_epi32(0x00ff00ff);
    __m512i left_even = _mm512_and_si512((__m512i)left, even), left_odd = _mm512_srli_epi16((__m512i)left, 8);
    __m512i right_even = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)right, 8), 8);
    __m512i right_odd = _mm512_srai_epi16((__m512i)right, 8);
    __m512i products = _mm512_add_epi32(_mm512_madd_epi16(left_even, right_even), _mm512_madd_epi16(left_odd, right_odd));
    return (Ints)_mm512_add_epi32((__m512i)sum, products);
#elif defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)left, (__m256i)right);
#else
    for (int byte = 0; byte < 4; byte++) {
        Ints unsigned_byte = (left >> (8 * byte)) & 0xff;
        Ints signed_byte = (right << (24 - 8 * byte)) >> 24;
        sum += unsigned_byte * signed_byte;
    }
    return sum;
#endif
}

// The products of a word of numbers: one float32, two bfloat16, four int8, or two float16 by two float32.
//
// Sum, Column: a vector of sums, and of a panel.
// PARTS: products in a row that make those of a word.
// ROW_BYTES: bytes of a row in a step.
template <typename Numbers>
struct Dot;

CHAIRLIFT_INLINE Floats broadcast_float(const void* from) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Floats)_mm256_broadcast_ss((const float*)from);  // compilers would move it through a scalar register
#elif defined(CHAIRLIFT_NEON)
    return (Floats)vld1q_dup_f32((const float*)from);
#else
    float value;
    memcpy(&value, from, sizeof value);
    return broadcast(value);
#endif
}

template <>
struct Dot<float> {
    static constexpr int PARTS = 1, ROW_BYTES = 4;
    using Sum = Floats;
    using Column = Floats;
    static CHAIRLIFT_INLINE Floats column(Ints words, int) {
        keep_in_register(words);
        return as_floats(words);
    }
    template <typename Row>
    static CHAIRLIFT_INLINE Floats row(const Row* word, int) { return broadcast_float(word); }
    static CHAIRLIFT_INLINE Floats add(Floats sum, Floats column, Floats row) { return fma(column, row, sum); }
};

// The products of the first inputs, then those of the second: as exact and in the same order as in float32.
template <>
struct Dot<Float16> {
    static constexpr int PARTS = 2, ROW_BYTES = 8;
    using Sum = Floats;
    using Column = Floats;
    static CHAIRLIFT_INLINE Floats row(const uint8_t* pair, int part) { return broadcast_float(pair + 4 * part); }
    static CHAIRLIFT_INLINE Floats add(Floats sum, Floats column, Floats row) { return fma(column, row, sum); }
};

#if (defined(__AVX2__) && !defined(__AVX512F__)) || defined(CHAIRLIFT_NEON)

// A bfloat16 of a row that is multiplied by many vectors, widened.
using WideBfloat16 = float;
constexpr bool WIDENS_ROWS = true;

// Returns `count` numbers of a row; `memory` is for those that are widened.
CHAIRLIFT_INLINE const float* row_numbers(const Bfloat16* row, int count, float* memory) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(memory + i, bf16_to_f32(row + i));
    for (; i < count; i++) memory[i] = bf16_to_f32(row[i]);
    return memory;
}

CHAIRLIFT_INLINE void store_rounded_row(float* to, Floats values) {
    store(to, bf16_bits(values) << 16);
}

// The lower numbers of all lanes are widened and multiplied, then the upper ones.
template <>
struct Dot<Bfloat16> {
    static constexpr int PARTS = 2, ROW_BYTES = 4;
    using Sum = Floats;
    using Column = Floats;
    static CHAIRLIFT_INLINE Floats column(Ints words, int part) {
        return as_floats(part ? words & broadcast((int32_t)0xffff0000) : words << 16);
    }
    static CHAIRLIFT_INLINE Floats row(const uint8_t* word, int part) { return column(broadcast_word(word), part); }
    static CHAIRLIFT_INLINE Floats row(const float* pair, int part) { return broadcast_float(pair + part); }
    static CHAIRLIFT_INLINE Floats add(Floats sum, Floats column, Floats row) { return fma(column, row, sum); }
};

#else

using WideBfloat16 = Bfloat16;
constexpr bool WIDENS_ROWS = false;
CHAIRLIFT_INLINE const Bfloat16* row_numbers(const Bfloat16* row, int, Bfloat16*) { return row; }
CHAIRLIFT_INLINE void store_rounded_row(Bfloat16* to, Floats values) { store_bf16(to, values); }

template <>
struct Dot<Bfloat16> {
    static constexpr int PARTS = 1, ROW_BYTES = 4;
    using Sum = Floats;
    using Column = Ints;
    static CHAIRLIFT_INLINE Ints column(Ints words, int) { return words; }
    template <typename Row>
    static CHAIRLIFT_INLINE Ints row(const Row* word, int) { return broadcast_word(word); }
    static CHAIRLIFT_INLINE Floats add(Floats sum, Ints column, Ints row) { return dot_pairs(sum, column, row); }
};

#endif

// What the products of int8 have in common.
struct Int8Words {
    static constexpr int PARTS = 1, ROW_BYTES = 4;
    using Sum = Ints;
    static CHAIRLIFT_INLINE Ints row(const uint8_t* word, int) { return broadcast_word(word); }
};

// CHAIRLIFT_EMULATES_AVX_VNNI: a test of the kernels for AVX-VNNI on a processor without it.
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__) && !defined(CHAIRLIFT_EMULATES_AVX_VNNI)

constexpr bool MOVES_SIGNS = true;

// The magnitude of a weight is the unsigned byte of a product, and its sign moves to the row's byte. A sum of two
// products is at most 2 * 128 * 127 and fits 16 bits.
template <>
struct Dot<Int8> : Int8Words {
    struct Column {
        Ints values, magnitudes;
    };
    static CHAIRLIFT_INLINE Column column(Ints words, int) {
        const __m256i values = (__m256i)(words ^ broadcast((int32_t)0x80808080));  // without the offset of 128
        return {(Ints)values, (Ints)_mm256_abs_epi8(values)};
    }
    static CHAIRLIFT_INLINE Ints add(Ints sum, const Column& column, Ints row) {
        const __m256i signed_row = _mm256_sign_epi8((__m256i)row, (__m256i)column.values);
        const __m256i pairs = _mm256_maddubs_epi16((__m256i)column.magnitudes, signed_row);
        return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
    // Returns what the sums begin with; `row_sum` is -128 * the sum of the row's values.
    static CHAIRLIFT_INLINE int32_t start(int32_t) { return 0; }
};

#elif defined(CHAIRLIFT_NEON)

constexpr bool MOVES_SIGNS = false;

template <>
struct Dot<Int8> : Int8Words {
    using Column = Ints;
    static CHAIRLIFT_INLINE Ints column(Ints words, int) {
        return words ^ broadcast((int32_t)0x80808080);  // without the offset of 128
    }
    static CHAIRLIFT_INLINE Ints add(Ints sum, Ints column, Ints row) {
        const int8x16_t left = (int8x16_t)column, right = (int8x16_t)row;
#if defined(__ARM_FEATURE_DOTPROD)
        return (Ints)vdotq_s32((int32x4_t)sum, left, right);
#else
        const int16x8_t lower = vmull_s8(vget_low_s8(left), vget_low_s8(right)), upper = vmull_high_s8(left, right);
        return sum + (Ints)vpaddq_s32(vpaddlq_s16(lower), vpaddlq_s16(upper));
#endif
    }
    static CHAIRLIFT_INLINE int32_t start(int32_t) { return 0; }
};

#else

constexpr bool MOVES_SIGNS = false;

template <>
struct Dot<Int8> : Int8Words {
    using Column = Ints;
    static CHAIRLIFT_INLINE Ints column(Ints words, int) {
        keep_in_register(words);  // bfloat16 columns stay by themselves
        return words;
    }
    static CHAIRLIFT_INLINE Ints add(Ints sum, Ints column, Ints row) { return dot_quads(sum, column, row); }
    // The row's sum cancels the weights' offset of 128.
    static CHAIRLIFT_INLINE int32_t start(int32_t row_sum) { return row_sum; }
};

#endif

// Codes of at most 6 bits, which are unsigned bytes of a product as they are. Where products of bytes are summed in
// pairs to 16 bits, so are the pairs of MAX_QUADS quads, before widen().
template <>
struct Dot<Code> : Int8Words {
    using Column = Ints;
    static CHAIRLIFT_INLINE Ints column(Ints words, int) { return words; }
#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
    static constexpr bool SUMS_PAIRS = true;
    static CHAIRLIFT_INLINE Ints add(Ints sum, Ints column, Ints row) {
        return (Ints)_mm512_add_epi16((__m512i)sum, _mm512_maddubs_epi16((__m512i)column, (__m512i)row));
    }
    static CHAIRLIFT_INLINE Ints widen(Ints sum) {
        return (Ints)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1));
    }
#elif defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__) && !defined(CHAIRLIFT_EMULATES_AVX_VNNI)
    static constexpr bool SUMS_PAIRS = true;
    static CHAIRLIFT_INLINE Ints add(Ints sum, Ints column, Ints row) {
        return (Ints)_mm256_add_epi16((__m256i)sum, _mm256_maddubs_epi16((__m256i)column, (__m256i)row));
    }
    static CHAIRLIFT_INLINE Ints widen(Ints sum) {
        return (Ints)_mm256_madd_epi16((__m256i)sum, _mm256_set1_epi16(1));
    }
#else
    static constexpr bool SUMS_PAIRS = false;
    static CHAIRLIFT_INLINE Ints add(Ints sum, Ints column, Ints row) { return Dot<Int8>::add(sum, column, row); }
    static CHAIRLIFT_INLINE Ints widen(Ints sum) { return sum; }
#endif
    // Quads whose sums of pairs fit 16 bits: 2 * 127 * 15 * 8, 2 * 127 * 31 * 4 and 2 * 127 * 63 * 2 are below 2**15.
    static constexpr int max_quads(int bits) { return bits == 4 ? 8 : bits == 5 ? 4 : 2; }
};

// Returns the numbers at the indices 0 to 15 of a table, byte by byte.
CHAIRLIFT_INLINE Ints look_up(const uint8_t* table, Ints indices) {
#if defined(__AVX512BW__)
    const __m128i numbers = _mm_load_si128((const __m128i*)table);
    return (Ints)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(numbers), (__m512i)indices);
#elif defined(__AVX2__)
    const __m128i numbers = _mm_load_si128((const __m128i*)table);
    return (Ints)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(numbers), (__m256i)indices);
#elif defined(CHAIRLIFT_NEON)
    return (Ints)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)indices);
#else
    uint8_t bytes[sizeof(Ints)];
    store(bytes, indices);
    for (uint8_t& byte : bytes) byte = table[byte];
    return load<Ints>(bytes);
#endif
}

// The lowest four bits of a quad's codes, and the bits above them, of a vector of a group.
CHAIRLIFT_INLINE Ints low_bits(const uint8_t* group, int vector, int quad) {
    const Ints words = load<Ints>(group + quad / 2 * STEP_BYTES + vector * sizeof(Ints));
    return (quad % 2 ? words >> 4 : words) & broadcast(0x0f0f0f0f);
}

template <int BITS>
CHAIRLIFT_INLINE Ints high_bits(const uint8_t* group, int vector, int quad) {
    constexpr int MORE = BITS - 4, PER_STEP = QUADS / MORE;
    const Ints words = load<Ints>(group + (4 + quad / PER_STEP) * STEP_BYTES + vector * sizeof(Ints));
    const int shift = quad % PER_STEP * MORE - 4;
    return (shift < 0 ? words << -shift : words >> shift) & broadcast(MORE == 1 ? 0x10101010 : 0x30303030);
}

template <WeightKind KIND>
using GroupNumbers = std::conditional_t<code_bits(KIND) == 8 || has_table(KIND), Int8, Code>;

// A vector of a quad of a group of codes of less than 8 bits: GroupNumbers, a byte each.
template <WeightKind KIND>
CHAIRLIFT_INLINE Ints group_words(const uint8_t* group, int vector, int quad) {
    const Ints low = low_bits(group, vector, quad);
    if constexpr (has_table(KIND))
        return look_up(code_table(KIND), low);
    else if constexpr (code_bits(KIND) == 4)
        return low;
    else
        return low | high_bits<code_bits(KIND)>(group, vector, quad);
}

// What the sums of products begin with; `row_sum` is -128 * the sum of the row's values. It cancels the code of zero.
template <WeightKind KIND>
CHAIRLIFT_INLINE int32_t group_start(int32_t row_sum) {
    if constexpr (has_minima(KIND)) return 0;
    if constexpr (std::is_same_v<GroupNumbers<KIND>, Int8>) return Dot<Int8>::start(row_sum);
    return row_sum / (128 / code_offset(KIND));
}

// A vector of a panel: of the `vector`-th LANES outputs from `step` on.
template <typename Numbers>
CHAIRLIFT_INLINE typename Dot<Numbers>::Column load_column(const uint8_t* step, int vector, int part) {
    return Dot<Numbers>::column(load<Ints>(step + vector * sizeof(Ints)), part);
}

template <>
CHAIRLIFT_INLINE Floats load_column<Float16>(const uint8_t* step, int vector, int part) {
    Floats values = f16_to_f32((const Float16*)step + part * PANEL + vector * LANES);
    keep_in_register(values);
    return values;
}

// A number of the rows of attention by numbers in the cache: as it is, or widened.
template <typename Numbers>
using RowNumber = std::conditional_t<std::is_same_v<Numbers, Bfloat16>, WideBfloat16, float>;

CHAIRLIFT_INLINE const float* row_numbers(const float* row, int, float*) { return row; }

// Writes numbers of a row, rounded to those of the cache.
template <typename Numbers>
CHAIRLIFT_INLINE void store_row(RowNumber<Numbers>* to, Floats values) {
    if constexpr (sizeof(Numbers) == sizeof(float))
        store(to, values);
    else
        store_rounded_row(to, values);
}

}  // namespace chairlift::CHAIRLIFT_SET
