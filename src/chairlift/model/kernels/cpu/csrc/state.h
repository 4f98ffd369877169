// Kernels of layers with a state: causal convolution, recurrence, gated norm.
//
// A row's tokens are computed one after another, each sum in one order, so outputs and states have the same bits however
// a prompt is cut into chunks. Channels, heads and columns of a state do not depend on each other; tasks are parts of
// them.
#pragma once

#include <cmath>

#include "kernels.h"
#include "linear.h"
#include "simd.h"

namespace chairlift::CHAIRLIFT_SET {

CHAIRLIFT_INLINE Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(x < -88.0f ? broadcast(88.0f) : -x)); }

// The inputs of a convolution for one row: those of its new tokens, behind those in its state.
struct ConvolutionInputs {
    const ConvolutionCall& call;
    const float* rows;   // first channel of the row's first token
    const float* state;  // null: zeros
    CHAIRLIFT_INLINE Floats at(int token, int channel) const {
        if (token < 0) {
            if (!state) return Floats{};
            return load<Floats>(state + (size_t)(call.width - 1 + token) * call.channels + channel);
        }
        const float* from = rows + token * call.in_stride + channel;
        return call.is_gated ? load<Floats>(from) * load<Floats>(from + 2 * call.channels) : load<Floats>(from);
    }
    // Writes the state after so many tokens; `to` may be the state itself, as every input moves to the front.
    CHAIRLIFT_INLINE void write_state(float* to, int num_tokens, int begin, int end) const {
        for (int i = 0; i < call.width - 1; i++)
            for (int channel = begin; channel < end; channel += LANES)
                store(to + (size_t)i * call.channels + channel, at(num_tokens - call.width + 1 + i, channel));
    }
};

template <typename Number>
CHAIRLIFT_INLINE void convolve(const ConvolutionCall& call, const ConvolutionInputs& inputs, int row, int begin, int end) {
    const int first = call.rows.cu_seqlens_q[row], count = call.rows.count(row), width = call.width;
    for (int token = 0; token < count; token++) {
        Number* out = (Number*)call.out + (size_t)(first + token) * call.out_stride;
        const float* gates = inputs.rows + token * call.in_stride + call.channels;
        for (int channel = begin; channel < end; channel += LANES) {
            Floats total = inputs.at(token - width + 1, channel) * load<Floats>(call.weights + channel);
            for (int i = 1; i < width; i++)
                total = fma(
                    inputs.at(token - width + 1 + i, channel),
                    load<Floats>(call.weights + (size_t)i * call.channels + channel), total);
            if (call.bias) total += load<Floats>(call.bias + channel);
            store_rounded(out + channel, call.is_gated ? total * load<Floats>(gates + channel) : activate(total, SILU));
        }
    }
}

static void convolution(const ConvolutionCall& call, int row, int begin, int end) {
    const StateRows& rows = call.rows;
    const size_t entry_elements = (size_t)(call.width - 1) * call.channels;
    float* own = call.states + rows.slots[row] * entry_elements;
    const float* in = call.in + rows.cu_seqlens_q[row] * call.in_stride + call.first_column;
    const ConvolutionInputs inputs = {call, in, rows.is_fresh(row) ? nullptr : own};
    if (call.out_is_f32)
        convolve<float>(call, inputs, row, begin, end);
    else
        convolve<Bfloat16>(call, inputs, row, begin, end);
    for (int i = 0; i < rows.num_saves; i++)
        if (rows.saves[i].row == row)
            inputs.write_state(
                call.states + rows.saves[i].entry * entry_elements, rows.saves[i].num_tokens, begin, end);
    inputs.write_state(own, rows.count(row), begin, end);  // last: the saves read the old state
}

// Tokens whose keys and queries are prepared together.
constexpr int RECURRENCE_TOKENS = 32;

// A stripe of a state: some panels of its columns, which stay in the L1 cache over the tokens of a block.
constexpr int STRIPE_PANELS = LANES == 16 ? 2 : 1, PANEL_VECTORS = STATE_WIDTH / LANES;

// Sums over the rows of a state have PARTS parts, so that one addition need not wait for the last one.
constexpr int PARTS = 4;

// What one head needs of one token.
struct HeadToken {
    const float *query, *key, *value;
    float* out;
    float decay;   // factor of the state
    float factor;  // DELTA_RULE: beta, STATE_SPACE: dt
};

template <int VECTORS>
CHAIRLIFT_INLINE void add_parts(Floats (&sums)[PARTS][VECTORS]) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sums[0][v] = (sums[0][v] + sums[1][v]) + (sums[2][v] + sums[3][v]);
}

// Moves PANELS panels of a state on by one token. state: the first of them, of the columns from `column` on. ahead: as
// many bytes of another state, which are prefetched if PREFETCHES.
template <int PANELS, bool HAS_DELTA_RULE, bool PREFETCHES>
CHAIRLIFT_INLINE void move_stripe(
    const RecurrenceShape& shape, const HeadToken& token, float skip, float* state, int column, const float* ahead) {
    constexpr int VECTORS = PANELS * PANEL_VECTORS;
    const size_t panel_floats = (size_t)shape.key_dim * STATE_WIDTH;
    const auto place = [=](int row, int v) {
        return v / PANEL_VECTORS * panel_floats + row * STATE_WIDTH + v % PANEL_VECTORS * LANES;
    };
    const Floats decay = broadcast(token.decay);
    Floats value[VECTORS], update[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) value[v] = load<Floats>(token.value + column + v * LANES);
    if constexpr (HAS_DELTA_RULE) {
        Floats old[PARTS][VECTORS] = {};
        for (int i = 0; i < shape.key_dim; i += PARTS)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) {
                const Floats key = broadcast(token.key[i + part]);
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++)
                    old[part][v] = fma(load<Floats>(state + place(i + part, v)), key, old[part][v]);
            }
        add_parts(old);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) update[v] = fma(-decay, old[0][v], value[v]) * token.factor;
    } else {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) update[v] = value[v] * token.factor;
    }
    Floats out[PARTS][VECTORS] = {};
    for (int i = 0; i < shape.key_dim; i += PARTS)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            const Floats key = broadcast(token.key[i + part]), query = broadcast(token.query[i + part]);
            if constexpr (PREFETCHES)  // a row of a panel is a cache line
                for (int panel = 0; panel < PANELS; panel++)
                    prefetch(ahead + place(i + part, panel * PANEL_VECTORS));
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                float* at = state + place(i + part, v);
                const Floats moved = fma(key, update[v], load<Floats>(at) * decay);
                store(at, moved);
                out[part][v] = fma(moved, query, out[part][v]);
            }
        }
    add_parts(out);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) {
        const Floats total = HAS_DELTA_RULE ? out[0][v] : fma(value[v], broadcast(skip), out[0][v]);
        store(token.out + column + v * LANES, total);
    }
}

template <bool HAS_DELTA_RULE, bool PREFETCHES>
static void move_state(
    const RecurrenceShape& shape, const HeadToken* tokens, int count, float skip, float* state, const float* ahead) {
    constexpr int COLUMNS = STRIPE_PANELS * STATE_WIDTH;
    int column = 0;
    for (; column + COLUMNS <= shape.value_dim; column += COLUMNS)
        for (int i = 0; i < count; i++)
            move_stripe<STRIPE_PANELS, HAS_DELTA_RULE, PREFETCHES>(
                shape, tokens[i], skip, state + column * shape.key_dim, column, ahead + column * shape.key_dim);
    for (; column < shape.value_dim; column += STATE_WIDTH)
        for (int i = 0; i < count; i++)
            move_stripe<1, HAS_DELTA_RULE, PREFETCHES>(
                shape, tokens[i], skip, state + column * shape.key_dim, column, ahead + column * shape.key_dim);
}

// ahead: the state that this thread moves on next, or null.
template <bool HAS_DELTA_RULE>
CHAIRLIFT_INLINE void move_state(
    const RecurrenceShape& shape, const HeadToken* tokens, int count, float skip, float* state, const float* ahead) {
    // A single token takes as long as its state is read from memory. Of more tokens, the first ones would fetch the next
    // state too early.
    if (ahead && count == 1)
        move_state<HAS_DELTA_RULE, true>(shape, tokens, count, skip, state, ahead);
    else
        move_state<HAS_DELTA_RULE, false>(shape, tokens, count, skip, state, state);
}

// Writes a query or key with a length, or almost: the square of the length has 1e-6 more.
CHAIRLIFT_INLINE void scale_to_length(const float* in, int width, float length, float* out) {
    Floats squares = {};
    for (int i = 0; i < width; i += LANES) squares = fma(load<Floats>(in + i), load<Floats>(in + i), squares);
    const float factor = length / sqrtf(reduce_sum(squares) + 1e-6f);
    for (int i = 0; i < width; i += LANES) store(out + i, load<Floats>(in + i) * factor);
}

CHAIRLIFT_INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Tokens of one head, prepared for move_state(), with the memory of their keys and queries.
struct HeadTokens {
    alignas(64) float keys[RECURRENCE_TOKENS * MAX_KEY_DIM];  // [tokens][key_dim]
    alignas(64) float queries[RECURRENCE_TOKENS * MAX_KEY_DIM];
    HeadToken tokens[RECURRENCE_TOKENS];

    void prepare(const RecurrenceCall& call, int first, int count, int head) {
        const RecurrenceShape& shape = call.shape;
        const int key_offset = head / (shape.num_heads / shape.num_key_heads) * shape.key_dim;
        for (int i = 0; i < count; i++) {
            const float* in = call.in + (size_t)(first + i) * call.in_stride;
            const float* projection = call.projection + (size_t)(first + i) * call.projection_stride;
            HeadToken& token = tokens[i];
            token.query = in + shape.query_column + key_offset, token.key = in + shape.key_column + key_offset;
            token.value = in + shape.value_column + head * shape.value_dim;
            token.out = call.out + (size_t)(first + i) * call.out_stride + head * shape.value_dim;
            float dt = softplus(projection[shape.decay_column + head] + shape.dt_bias[head]);
            if (shape.kind == DELTA_RULE) {
                float *own_key = keys + i * shape.key_dim, *own_query = queries + i * shape.key_dim;
                scale_to_length(token.key, shape.key_dim, 1.0f, own_key);
                scale_to_length(token.query, shape.key_dim, 1.0f / sqrtf((float)shape.key_dim), own_query);
                token.key = own_key, token.query = own_query;
                token.factor = 1.0f / (1.0f + expf(-projection[shape.beta_column + head]));
            } else {
                dt = dt < shape.min_dt ? shape.min_dt : dt > shape.max_dt ? shape.max_dt : dt;
                token.factor = dt;
            }
            token.decay = expf(shape.decay_rates[head] * dt);
        }
    }
};

static void recurrence(const RecurrenceCall& call, int row, int head, const float* ahead) {
    const StateRows& rows = call.rows;
    const RecurrenceShape& shape = call.shape;
    const size_t elements = call.head_elements();
    const auto state_of = [&](int entry) { return call.state_of(entry, head); };
    float* state = state_of(rows.slots[row]);
    if (rows.is_fresh(row)) memset(state, 0, elements * sizeof(float));
    const float skip = shape.kind == STATE_SPACE ? shape.skips[head] : 0.0f;
    HeadTokens block;
    for (int done = 0, end; done < rows.count(row); done = end) {
        end = done + RECURRENCE_TOKENS < rows.count(row) ? done + RECURRENCE_TOKENS : rows.count(row);
        for (int i = 0; i < rows.num_saves; i++) {
            const StateSave& save = rows.saves[i];
            if (save.row == row && save.num_tokens > done && save.num_tokens < end) end = save.num_tokens;
        }
        block.prepare(call, rows.cu_seqlens_q[row] + done, end - done, head);
        if (shape.kind == DELTA_RULE)
            move_state<true>(shape, block.tokens, end - done, skip, state, ahead);
        else
            move_state<false>(shape, block.tokens, end - done, skip, state, ahead);
        for (int i = 0; i < rows.num_saves; i++)
            if (rows.saves[i].row == row && rows.saves[i].num_tokens == end)
                memcpy(state_of(rows.saves[i].entry), state, elements * sizeof(float));
    }
}

CHAIRLIFT_INLINE Floats gate_factor(const GatedNormCall& call, const float* gate) {
    return call.is_sigmoid ? sigmoid(load<Floats>(gate)) : activate(load<Floats>(gate), SILU);
}

// Group widths are multiples of STATE_WIDTH.
template <typename Number>
CHAIRLIFT_INLINE void gated_norm_group(
    const GatedNormCall& call, const float* in, const float* gate, const float* weight, Number* out) {
    Floats squares = {};
    for (int i = 0; i < call.group_width; i += LANES) {
        const Floats x = load<Floats>(in + i), gated = call.gates_first ? x * gate_factor(call, gate + i) : x;
        squares = fma(gated, gated, squares);
    }
    const float inverse = 1.0f / sqrtf(reduce_sum(squares) / call.group_width + call.eps);
    for (int i = 0; i < call.group_width; i += LANES) {
        const Floats x = load<Floats>(in + i), factor = gate_factor(call, gate + i);
        const Floats normed = (call.gates_first ? x * factor : x) * inverse * load<Floats>(weight + i);
        store_rounded(out + i, call.gates_first ? normed : normed * factor);
    }
}

template <typename Number>
static void gated_norm_rows(const GatedNormCall& call, int begin, int end) {
    for (int row = begin; row < end; row++)
        for (int first = 0; first < call.width; first += call.group_width)
            gated_norm_group(
                call, call.in + row * call.in_stride + first, call.gate + row * call.gate_stride + first,
                call.weight + first, (Number*)call.out + row * call.out_stride + first);
}

static void gated_norm(const GatedNormCall& call, int begin, int end) {
    if (call.out_is_f32)
        gated_norm_rows<float>(call, begin, end);
    else
        gated_norm_rows<Bfloat16>(call, begin, end);
}

}  // namespace chairlift::CHAIRLIFT_SET
