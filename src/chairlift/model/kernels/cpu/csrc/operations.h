// Operations of a decoder (decoder.h). Each binds a kernel to buffers and weights and defines its tasks.
#pragma once

#include <algorithm>
#include <cstring>

#include "decoder.h"

namespace chairlift {

struct Embed : Operation {
    Decoder& decoder;
    const void* table;
    WeightKind table_kind;
    const Weight* packed;
    int width, out;
    float factor;
    Embed(
        Decoder& decoder, const void* table, WeightKind table_kind, const Weight* packed, int width, float factor,
        int out)
        : decoder(decoder), table(table), table_kind(table_kind), packed(packed), width(width), out(out),
          factor(factor) {}
    const char* name() const override { return "embed"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step& step, int begin, int end, int, int) override {
        const Buffer& to = decoder.buffers[out];
        decoder.kernels.embed({step.ids, table, table_kind, packed, width, factor, to.f32(), to.stride}, begin, end);
    }
};

static QuantizeCall quantize_call(const Buffer& from, const Buffer& to) {
    return {from.data, from.kind == F32, from.stride, (int32_t)to.stride, to.quantization, (int8_t*)to.data, to.stride,
            to.scales, to.sums};
}

// out = norm(in). With `adds`: out += norm(in), and out is float32. With a buffer `quantized`: quantized = norm(in),
// and only one row of `out` per thread is written.
struct Norm : Operation {
    Decoder& decoder;
    int in, out, quantized;
    const float* weight;
    float eps;
    bool adds;
    Norm(Decoder& decoder, int in, const float* weight, float eps, int out, bool adds, int quantized)
        : decoder(decoder), in(in), out(out), quantized(quantized), weight(weight), eps(eps), adds(adds) {}
    const char* name() const override { return "norm"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step&, int begin, int end, int, int thread_index) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        const NormMode mode = to.kind == BF16 ? NORM_BF16 : adds ? NORM_ADD : NORM_F32;
        NormCall norm = {from.data, false, from.stride, weight, eps, from.width, mode, to.data, to.stride};
        if (quantized < 0) return decoder.kernels.norm(norm, begin, end);
        QuantizeCall quantize = quantize_call(to, decoder.buffers[quantized]);
        // One row for each thread, at once quantized: it stays in the thread's cache.
        norm.out = (char*)to.data + to.bytes(thread_index), norm.out_stride = 0;
        quantize.in = norm.out, quantize.in_stride = 0;
        for (int row = begin; row < end; row++) {
            decoder.kernels.norm(norm, row, row + 1);
            decoder.kernels.quantize(quantize, row, row + 1);
        }
    }
};

// out = factor * (out + norm(in)), where each group of a row has a norm; both are float32.
struct AddNorm : Operation {
    Decoder& decoder;
    int in, out, groups;
    NormCall shape;  // of a group
    AddNorm(Decoder& decoder, int in, int out, int groups, const NormCall& shape)
        : decoder(decoder), in(in), out(out), groups(groups), shape(shape) {}
    const char* name() const override { return "norm"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step&, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        NormCall call = shape;
        call.in_stride = from.stride, call.out_stride = to.stride;
        for (int group = 0; group < groups; group++) {
            call.in = from.f32() + group * shape.width, call.out = to.f32() + group * shape.width;
            decoder.kernels.norm(call, begin, end);
        }
    }
};

struct Quantize : Operation {
    Decoder& decoder;
    int in, out, rows_per_token;
    Quantize(Decoder& decoder, int in, int out, int rows_per_token = 1)
        : decoder(decoder), in(in), out(out), rows_per_token(rows_per_token) {}
    const char* name() const override { return "quantize"; }
    int num_tasks(const Step& step) const override { return step.num_tokens * rows_per_token; }
    void run(const Step&, int begin, int end, int, int) override {
        decoder.kernels.quantize(quantize_call(decoder.buffers[in], decoder.buffers[out]), begin, end);
    }
};

// A task is a half panel of one of the weights, whose outputs follow each other in the output. The weights read the same
// rows; those before the last have whole half panels of outputs, without padding. A thread takes two tasks at once while
// more than two per thread remain.
struct Linear : Operation {
    Decoder& decoder;
    int in, out;
    std::vector<const Weight*> weights;
    const float* bias;
    LinearMode mode;
    Activation activation;
    const Weight* next_weight = nullptr;  // of the next linear operation; its first panels are prefetched
    Linear(
        Decoder& decoder, int in, std::vector<const Weight*> weights, const float* bias, LinearMode mode,
        Activation activation, int out)
        : decoder(decoder), in(in), out(out), weights(std::move(weights)), bias(bias), mode(mode),
          activation(activation) {}
    const char* name() const override { return "linear"; }
    int num_tasks(const Step&) const override {
        int count = 2 * weights.back()->panels;
        for (size_t i = 0; i + 1 < weights.size(); i++) count += weights[i]->outputs / HALF_PANEL;
        return count;
    }
    int chunk_size(int remaining, int num_threads) const override {
        return remaining > 2 * num_threads && remaining % 2 == 0 ? 2 : 1;
    }

    // The half panel of a task.
    struct Place {
        const Weight* weight;
        int half, first_output;  // the weight's first output
        const uint8_t* panel() const { return weight->data + half / 2 * weight->panel_bytes(); }
    };
    Place place_of(int task) const {
        int first_output = 0;
        for (size_t i = 0; i + 1 < weights.size(); i++) {
            const int halves = weights[i]->outputs / HALF_PANEL;
            if (task < halves) return {weights[i], task, first_output};
            task -= halves, first_output += weights[i]->outputs;
        }
        return {weights.back(), task, first_output};
    }

    void run(const Step& step, int begin, int end, int next, int thread_index) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        const uint8_t* ahead = nullptr;
        size_t bytes = 0;
        if (next >= 0) {
            const Place place = place_of(next);
            ahead = place.panel(), bytes = place.weight->panel_bytes();
        } else if (next_weight && thread_index < next_weight->panels) {
            ahead = next_weight->data + thread_index * next_weight->panel_bytes(), bytes = next_weight->panel_bytes();
        }
        for (int task = begin, count; task < end; task += count, bytes = 0) {
            const Place place = place_of(task);
            const bool is_whole = place.half % 2 == 0 && task + 2 == end && place_of(task + 1).weight == place.weight;
            count = is_whole ? 2 : 1;
            void* first = (char*)to.data + place.first_output * (to.kind == F32 ? sizeof(float) : sizeof(Bfloat16));
            const float* own_bias = bias ? bias + place.first_output : nullptr;
            const LinearCall call = {place.weight, from.rows(step.num_tokens), own_bias, mode, activation, first,
                                     to.stride, mode == GATED && to.kind == F32, nullptr, 0};
            decoder.kernels.linear(call, place.half, count, ahead, bytes, nullptr);
        }
    }
};

struct RopeCache : Operation {
    Decoder& decoder;
    int in, out, group, cache_index;
    RopeCacheCall shape;  // the fields that are the same in every step
    RopeCache(Decoder& decoder, int in, int out, int group, int cache_index, const RopeCacheCall& shape)
        : decoder(decoder), in(in), out(out), group(group), cache_index(cache_index), shape(shape) {}
    const char* name() const override { return "rope_cache"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step& step, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        RopeCacheCall call = shape;
        call.in = from.f32(), call.in_stride = from.stride;
        call.positions = step.positions, call.slot_mapping = step.groups[group].slot_mapping;
        call.cache.keys = step.caches[cache_index].keys, call.cache.values = step.caches[cache_index].values;
        call.cache.is_f32 = to.kind == F32;
        call.queries = to.data, call.queries_stride = to.stride;
        decoder.kernels.rope_cache(call, begin, end);
    }
};

// out = out * sigmoid(gate), where the gate's columns begin at `column` of the float32 buffer `in`.
struct MultiplyByGate : Operation {
    Decoder& decoder;
    int in, column, width, out;
    MultiplyByGate(Decoder& decoder, int in, int column, int width, int out)
        : decoder(decoder), in(in), column(column), width(width), out(out) {}
    const char* name() const override { return "gate"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step&, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        decoder.kernels.multiply_by_gate(
            {from.f32() + column, from.stride, width, to.data, to.kind == F32, to.stride}, begin, end);
    }
};

// out = activation(gate) * up, where the ups are columns of the float32 buffer `in` from `column` on.
struct MultiplyActivated : Operation {
    Decoder& decoder;
    int gate, in, column, width, out;
    Activation activation;
    MultiplyActivated(Decoder& decoder, int gate, int in, int column, int width, Activation activation, int out)
        : decoder(decoder), gate(gate), in(in), column(column), width(width), out(out), activation(activation) {}
    const char* name() const override { return "activation"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step&, int begin, int end, int, int) override {
        const Buffer &gates = decoder.buffers[gate], &ups = decoder.buffers[in], &to = decoder.buffers[out];
        decoder.kernels.multiply_activated(
            {gates.f32(), gates.stride, ups.f32() + column, ups.stride, activation, width, to.data, to.kind == F32,
             to.stride},
            begin, end);
    }
};

struct AttentionOp : Operation {
    Decoder& decoder;
    int in, out, plan_index, cache_index;
    AttentionCall shape;  // the fields that are the same in every step
    bool makes_plan;      // the first operation of a kind plans for all of that kind
    std::vector<std::atomic<int>> finished_parts{};
    AttentionOp(
        Decoder& decoder, int in, int out, int plan_index, int cache_index, const AttentionCall& shape, bool makes_plan)
        : decoder(decoder), in(in), out(out), plan_index(plan_index), cache_index(cache_index), shape(shape),
          makes_plan(makes_plan) {}
    const char* name() const override { return "attention"; }
    int num_tasks(const Step&) const override { return (int)decoder.attention_plans[plan_index].tiles.size(); }
    int chunk_size(int remaining, int num_threads) const override { return remaining > 16 * num_threads ? 2 : 1; }
    void prepare(const Step& step) override {
        AttentionPlan& plan = decoder.attention_plans[plan_index];
        const int num_kv_heads = shape.cache.num_kv_heads, dim = shape.cache.head_dim;
        if (makes_plan)
            plan_attention(plan, step, shape.num_heads / num_kv_heads, num_kv_heads, dim, decoder.pool.size());
        // All attention operations share them: they run one after another.
        if (decoder.partials.size() < plan.partial_floats) decoder.partials.resize(plan.partial_floats);
        if (finished_parts.size() < plan.num_splits.size())
            finished_parts = std::vector<std::atomic<int>>(plan.num_splits.size());
        for (auto& counter : finished_parts) counter.store(0, std::memory_order_relaxed);
        const Buffer& to = decoder.buffers[out];
        // No tile writes the output of padding tokens and of empty sequences.
        for (int token = step.cu_seqlens_q[step.num_seqs]; token < step.num_tokens; token++)
            to.clear(token);
        for (int sequence = 0; sequence < step.num_seqs; sequence++)
            if (step.seq_lens[sequence] == 0)
                for (int token = step.cu_seqlens_q[sequence]; token < step.cu_seqlens_q[sequence + 1]; token++)
                    to.clear(token);
    }
    void run(const Step& step, int begin, int end, int next, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        AttentionPlan& plan = decoder.attention_plans[plan_index];
        AttentionCall call = shape;
        call.queries = from.data, call.queries_stride = from.stride, call.out = to.data, call.out_stride = to.stride;
        call.out_is_f32 = to.kind == F32;
        call.cache.keys = step.caches[cache_index].keys, call.cache.values = step.caches[cache_index].values;
        call.cache.is_f32 = from.kind == F32;
        call.block_table = step.groups[plan.kind.group].block_table;
        call.max_blocks = step.groups[plan.kind.group].max_blocks;
        call.cu_seqlens_q = step.cu_seqlens_q, call.seq_lens = step.seq_lens, call.partials = decoder.partials.data();
        for (int i = begin; i < end; i++) {
            const int next_index = i + 1 < end ? i + 1 : next;
            decoder.kernels.attention(call, plan.tiles[i], next_index < 0 ? nullptr : &plan.tiles[next_index]);
            const int split = plan.split_index[i];
            // acq_rel: the thread that combines must see the partial results of all others.
            if (split < 0 || finished_parts[split].fetch_add(1, std::memory_order_acq_rel) + 1 < plan.num_splits[split])
                continue;
            // The thread that finishes the last part combines all. The parts of a row block are adjacent in the plan.
            AttentionTile row_block = plan.tiles[i];
            for (int first = i; first >= 0 && plan.split_index[first] == split; first--) row_block = plan.tiles[first];
            decoder.kernels.combine(call, row_block, plan.num_spans[split]);
        }
    }
};

// An operation of a layer with a state: its tasks are parts of the step's rows. Padding tokens and empty rows get zeros.
struct StateOperation : Operation {
    Decoder& decoder;
    int in, out, layer;
    StateOperation(Decoder& decoder, int in, int out, int layer) : decoder(decoder), in(in), out(out), layer(layer) {}
    virtual int tasks_per_row() const = 0;
    int num_tasks(const Step& step) const override { return step.num_seqs * tasks_per_row(); }
    void prepare(const Step& step) override {
        const Buffer& to = decoder.buffers[out];
        for (int token = step.cu_seqlens_q[step.num_seqs]; token < step.num_tokens; token++) to.clear(token);
        for (int row = 0; row < step.num_seqs; row++)
            if (step.seq_lens[row] == 0)
                for (int token = step.cu_seqlens_q[row]; token < step.cu_seqlens_q[row + 1]; token++) to.clear(token);
    }
};

// A task is some channels of one row: the state at the row's end replaces that at its start.
struct Convolution : StateOperation {
    ConvolutionCall shape;  // the fields that are the same in every step
    Convolution(Decoder& decoder, int in, int out, int layer, const ConvolutionCall& shape)
        : StateOperation(decoder, in, out, layer), shape(shape) {}
    const char* name() const override { return "convolution"; }
    int tasks_per_row() const override { return (shape.channels + CONVOLUTION_CHANNELS - 1) / CONVOLUTION_CHANNELS; }
    void run(const Step& step, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        ConvolutionCall call = shape;
        call.rows = step.state_rows(), call.states = step.states[layer].convolution;
        call.in = from.f32(), call.in_stride = from.stride;
        call.out = to.data, call.out_is_f32 = to.kind == F32, call.out_stride = to.stride;
        for (int task = begin; task < end; task++) {
            const int row = task / tasks_per_row(), first = task % tasks_per_row() * CONVOLUTION_CHANNELS;
            if (step.seq_lens[row] == 0) continue;
            decoder.kernels.convolution(call, row, first, std::min(first + CONVOLUTION_CHANNELS, call.channels));
        }
    }
};

// A task is one head of one row, over all of the row's tokens.
struct Recurrence : StateOperation {
    int projection;
    RecurrenceShape shape;
    Recurrence(Decoder& decoder, int in, int projection, int out, int layer, const RecurrenceShape& shape)
        : StateOperation(decoder, in, out, layer), projection(projection), shape(shape) {}
    const char* name() const override { return "recurrence"; }
    int tasks_per_row() const override { return shape.num_heads; }
    int chunk_size(int remaining, int num_threads) const override { return remaining > 16 * num_threads ? 2 : 1; }
    void run(const Step& step, int begin, int end, int next, int) override {
        const Buffer &from = decoder.buffers[in], &projected = decoder.buffers[projection], &to = decoder.buffers[out];
        const RecurrenceCall call = {shape, step.state_rows(), from.f32(), from.stride, projected.f32(),
                                     projected.stride, step.states[layer].recurrent, to.f32(), to.stride};
        for (int task = begin; task < end; task++) {
            const int row = task / shape.num_heads, following = task + 1 < end ? task + 1 : next;
            const float* ahead = following < 0 ? nullptr : call.state_of(
                step.slots[following / shape.num_heads], following % shape.num_heads);
            if (step.seq_lens[row] > 0) decoder.kernels.recurrence(call, row, task % shape.num_heads, ahead);
        }
    }
};

struct GatedNorm : Operation {
    Decoder& decoder;
    int in, gate, gate_column, out;
    GatedNormCall shape;  // the fields that are the same in every step
    GatedNorm(Decoder& decoder, int in, int gate, int gate_column, int out, const GatedNormCall& shape)
        : decoder(decoder), in(in), gate(gate), gate_column(gate_column), out(out), shape(shape) {}
    const char* name() const override { return "gated_norm"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step&, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &gates = decoder.buffers[gate], &to = decoder.buffers[out];
        GatedNormCall call = shape;
        call.in = from.f32(), call.in_stride = from.stride;
        call.gate = gates.f32() + gate_column, call.gate_stride = gates.stride;
        call.out = to.data, call.out_is_f32 = to.kind == F32, call.out_stride = to.stride;
        decoder.kernels.gated_norm(call, begin, end);
    }
};

}  // namespace chairlift
