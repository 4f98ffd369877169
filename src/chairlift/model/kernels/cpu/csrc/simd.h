// Vector types of the instruction set that this file is compiled for, and the operations that C++ has no operator for.
//
//     set            lanes   bfloat16 pairs            int8 quads (dot.h)
//     amx_bf16       16      vdpbf16ps; amx.cpp        vpdpbusd
//     avx512_bf16    16      vdpbf16ps                 vpdpbusd
//     avx512         16      widened, two FMA          widened, multiply and add
//     avx2_vnni      8       widened, two FMA          vpdpbusd
//     avx2           8       widened, two FMA          magnitudes by signed rows
//     neon_dotprod   4       widened, two FMA          sdot
//     neon           4       widened, two FMA          widened to 16 bits, added in pairs
//     portable       4       widened                   widened
//
// Vectors are those of GCC and clang, so + - * / and comparisons work on them in every set. Everything is in a
// namespace named after the set, and no inline function of the standard library is used. The linker keeps one copy of
// such a function, which could be one with instructions that this processor lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(CHAIRLIFT_NEON)
#include <arm_neon.h>
#endif

#include "kernels.h"

#ifndef CHAIRLIFT_SET
#error "compile with -DCHAIRLIFT_SET=<name of the instruction set>"
#endif

namespace chairlift::CHAIRLIFT_SET {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

// Whether there are 16 vector registers, or 32 (or unknown registers, of which the portable tiles use few).
#if defined(CHAIRLIFT_NEON) || defined(__AVX512F__)
constexpr int NUM_REGISTERS = 32;
#else
constexpr int NUM_REGISTERS = 16;
#endif

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

template <typename Vector, typename Element>
CHAIRLIFT_INLINE Vector load(const Element* from) {
    Vector vector;
    memcpy(&vector, from, sizeof vector);
    return vector;
}

template <typename Vector, typename Element>
CHAIRLIFT_INLINE void store(Element* to, Vector vector) {
    memcpy(to, &vector, sizeof vector);
}

CHAIRLIFT_INLINE Floats broadcast(float value) { return value - Floats{}; }
CHAIRLIFT_INLINE Ints broadcast(int32_t value) { return value - Ints{}; }

// Loads four bytes (two bfloat16 or four int8 of one row) into every lane.
CHAIRLIFT_INLINE Ints broadcast_word(const void* four_bytes) {
    int32_t word;
    memcpy(&word, four_bytes, sizeof word);
    return broadcast(word);
}

CHAIRLIFT_INLINE Floats as_floats(Ints bits) { return (Floats)bits; }

// Returns a * b + c, rounded once if the set has FMA.
CHAIRLIFT_INLINE Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(CHAIRLIFT_NEON)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

CHAIRLIFT_INLINE Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

// Returns lane i of `a` if bit i is set, else of `b`.
CHAIRLIFT_INLINE Floats select(uint32_t bits, Floats a, Floats b) {
#if defined(__AVX512F__)
    return (Floats)_mm512_mask_blend_ps((__mmask16)bits, (__m512)b, (__m512)a);
#else
    Words lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = 1u << i;
    return ((Words)broadcast((int32_t)bits) & lanes) != 0 ? a : b;
#endif
}

// Swaps every lane i with lane i ^ BY. BY is a power of two.
template <int BY, typename Vector>
CHAIRLIFT_INLINE Vector swap_lanes(Vector vector) {
#if defined(__AVX512F__)
    return __builtin_shufflevector(
        vector, vector, 0 ^ BY, 1 ^ BY, 2 ^ BY, 3 ^ BY, 4 ^ BY, 5 ^ BY, 6 ^ BY, 7 ^ BY, 8 ^ BY, 9 ^ BY, 10 ^ BY, 11 ^ BY,
        12 ^ BY, 13 ^ BY, 14 ^ BY, 15 ^ BY);
#elif defined(__AVX2__)
    return __builtin_shufflevector(
        vector, vector, 0 ^ BY, 1 ^ BY, 2 ^ BY, 3 ^ BY, 4 ^ BY, 5 ^ BY, 6 ^ BY, 7 ^ BY);
#else
    return __builtin_shufflevector(vector, vector, 0 ^ BY, 1 ^ BY, 2 ^ BY, 3 ^ BY);
#endif
}

// own: lane i of `a` if i has no bit BY, else lane i of `b`. other: likewise lane i ^ BY.
struct Interleaved {
    Ints own, other;
};

template <int BY>
CHAIRLIFT_INLINE Interleaved interleave(Ints a, Ints b) {
    Ints number = {};
    for (int lane = 0; lane < LANES; lane++) number[lane] = lane;
    const Ints is_clear = (number & BY) == 0;
    return {is_clear ? a : b, is_clear ? swap_lanes<BY>(a) : swap_lanes<BY>(b)};
}

// Reduces LANES vectors over their lanes at once. Lane i of the result is the reduction of vectors[i]. Overwrites
// vectors.
template <int BY = LANES / 2, typename Reduce>
CHAIRLIFT_INLINE Ints reduce_lanes(Ints* vectors, Reduce reduce) {
    for (int i = 0; i < BY; i++) {
        const Interleaved both = interleave<BY>(vectors[i], vectors[i + BY]);
        vectors[i] = reduce(both.own, both.other);
    }
    if constexpr (BY > 1) return reduce_lanes<BY / 2>(vectors, reduce);
    return vectors[0];
}

// Sums and maxima over the lanes are computed pairwise, in the same order in every set.
template <typename Vector>
CHAIRLIFT_INLINE auto reduce_sum(Vector vector) {
    if constexpr (LANES > 8) vector += swap_lanes<8>(vector);
    if constexpr (LANES > 4) vector += swap_lanes<4>(vector);
    vector += swap_lanes<2>(vector);
    vector += swap_lanes<1>(vector);
    return vector[0];
}

CHAIRLIFT_INLINE float reduce_max(Floats vector) {
    if constexpr (LANES > 8) vector = maximum(vector, swap_lanes<8>(vector));
    if constexpr (LANES > 4) vector = maximum(vector, swap_lanes<4>(vector));
    vector = maximum(vector, swap_lanes<2>(vector));
    return maximum(vector, swap_lanes<1>(vector))[0];
}

// Converts bfloat16 to float32: a bfloat16 is the upper half of the float32.
CHAIRLIFT_INLINE Floats bf16_to_f32(const uint16_t* from) {
#if defined(__AVX512F__)
    __m256i halves = _mm256_loadu_si256((const __m256i*)from);
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#elif defined(__AVX2__)
    __m128i halves = _mm_loadu_si128((const __m128i*)from);
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
#else
    return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
#endif
}

// Returns float32 rounded to bfloat16, to nearest, ties to even, each in the lower half of its lane. NaN stays NaN.
CHAIRLIFT_INLINE Words bf16_bits(Floats values) {
    const Words bits = (Words)values, rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    // The quiet bit: a NaN whose upper half is that of infinity would become infinity.
    return values != values ? (bits >> 16) | 0x40u : rounded;
}

// Stores float32 as bfloat16, rounded in the same way.
CHAIRLIFT_INLINE void store_bf16(uint16_t* to, Floats values) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
    const Words chosen = bf16_bits(values);
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16((__m512i)chosen));
#else
    store(to, __builtin_convertvector(chosen, Halves));
#endif
#endif
}

// Converts float16 to float32, exactly.
CHAIRLIFT_INLINE Floats f16_to_f32(const Float16* from) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(CHAIRLIFT_NEON)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)from)));
#else
    const Words halves = __builtin_convertvector(load<Halves>(from), Words), sign = (halves & 0x8000u) << 16;
    // The exponent's bias is 112 less. Infinity and NaN keep the largest exponent.
    const Floats size = (Floats)((halves & 0x7fffu) << 13) * 0x1p112f;
    const Words largest = (halves & 0x7c00u) == 0x7c00u ? Words{} + 0x7f800000u : Words{};
    return (Floats)((Words)size | sign | largest);
#endif
}

// A number in memory, and the nearest one to a float32.
CHAIRLIFT_INLINE void store_rounded(Bfloat16* to, Floats values) { store_bf16(to, values); }
CHAIRLIFT_INLINE void store_rounded(float* to, Floats values) { store(to, values); }

CHAIRLIFT_INLINE float bf16_to_f32(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

CHAIRLIFT_INLINE uint16_t f32_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16) | 0x40;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

CHAIRLIFT_INLINE float f16_to_f32(Float16 half) {
    const uint32_t size = (half.bits & 0x7fffu) << 13, largest = (half.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
    float value;
    memcpy(&value, &size, sizeof value);
    value *= 0x1p112f;  // see above
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits |= (half.bits & 0x8000u) << 16 | largest;
    memcpy(&value, &bits, sizeof value);
    return value;
}

CHAIRLIFT_INLINE void store_rounded(Bfloat16* to, float value) { *to = f32_to_bf16(value); }
CHAIRLIFT_INLINE void store_rounded(float* to, float value) { *to = value; }

// Returns, per lane, sum + left[0] * right[0] + left[1] * right[1] of the two bfloat16 in a word.
CHAIRLIFT_INLINE Floats dot_pairs(Floats sum, Ints left, Ints right) {
#if defined(__AVX512BF16__)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
#else
    const Ints upper = broadcast((int32_t)0xffff0000);
    sum = fma(as_floats(left << 16), as_floats(right << 16), sum);
    return fma(as_floats(left & upper), as_floats(right & upper), sum);
#endif
}

CHAIRLIFT_INLINE Floats to_floats(Ints values) { return __builtin_convertvector(values, Floats); }

// Converts signed bytes to float32.
CHAIRLIFT_INLINE Floats int8_to_f32(const int8_t* from) {
#if defined(__AVX512F__)
    return to_floats((Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    return to_floats((Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    return to_floats(__builtin_convertvector(load<Bytes>(from), Ints));
#endif
}

// Rounds to nearest, ties to even, for |value| < 2**22.
CHAIRLIFT_INLINE Ints round_to_ints(Floats values) {
    const Floats shift = broadcast(12582912.0f);  // 1.5 * 2**23: the sum has the integer in its lowest bits
    return (Ints)(values + shift) - (Ints)shift;
}

// Returns e**x for x <= 88, with a relative error below 2e-7; 0 for x < -87.3 and for -inf.
CHAIRLIFT_INLINE Floats exponential(Floats x) {
    const Floats lowest = broadcast(-87.33654f);
    Floats bounded = maximum(lowest, x);  // NaN stays NaN only in this order
    Ints power = round_to_ints(bounded * 1.442695041f);
    Floats whole = to_floats(power);
    Floats rest = fma(whole, broadcast(-0.693359375f), bounded);  // ln 2 in two parts
    rest = fma(whole, broadcast(2.12194440e-4f), rest);
    Floats series = broadcast(1.9875691500e-4f);
    series = fma(series, rest, broadcast(1.3981999507e-3f));
    series = fma(series, rest, broadcast(8.3334519073e-3f));
    series = fma(series, rest, broadcast(4.1665795894e-2f));
    series = fma(series, rest, broadcast(1.6666665459e-1f));
    series = fma(series, rest, broadcast(5.0000001201e-1f));
    Floats value = fma(series, rest * rest, rest + 1.0f);
    Floats scaled = value * as_floats((power + 127) << 23);
    return x < lowest ? Floats{} : scaled;
}

// Coefficients of polynomials for 2**x between -1/2 and 1/2, the highest power first. Relative errors: 3e-6 and 2e-7.
constexpr float COARSE_POWER[] = {9.5701e-3f, 5.591786e-2f, 0.24024745f, 0.69312181f, 0.99999926f};
constexpr float PRECISE_POWER[] = {1.52527338e-5f, 1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f,
                                   5.55041087e-2f, 0.240226507f,   0.693147181f,   1.0f};  // ln(2)**k / k!

// Returns 2**x for x <= 127, as exactly as the polynomial; 0 for x < -126.
template <int COUNT>
CHAIRLIFT_INLINE Floats power_of_two(Floats x, const float (&coefficients)[COUNT]) {
    const Floats shift = broadcast(12582912.0f), bounded = maximum(broadcast(-126.0f), x);
    const Floats moved = bounded + shift, rest = bounded - (moved - shift);
    Floats series = broadcast(coefficients[0]);
#pragma GCC unroll 8
    for (int i = 1; i < COUNT; i++) series = fma(series, rest, broadcast(coefficients[i]));
    const Floats scaled = series * as_floats(((Ints)moved + 127) << 23);
    return x < -126.0f ? Floats{} : scaled;
}

CHAIRLIFT_INLINE Floats hyperbolic_tangent(Floats x) {
    // exponential() takes at most 88, and beyond 9 tanh is 1 up to the last bit. NaN fails both comparisons and stays.
    Floats bounded = x > 9.0f ? broadcast(9.0f) : (x < -9.0f ? broadcast(-9.0f) : x);
    return 1.0f - 2.0f / (exponential(2.0f * bounded) + 1.0f);
}

CHAIRLIFT_INLINE void prefetch(const void* line) { __builtin_prefetch(line, 0, 2); }

}  // namespace chairlift::CHAIRLIFT_SET
