// The operations of a decoder (decoder.h): each binds a kernel to buffers and weights, and says what its tasks are.
#pragma once

#include <algorithm>
#include <cstring>

#include "decoder.h"

namespace chairlift {

struct Embed : Operation {
    Decoder& decoder;
    const uint16_t* table;
    const Weight* packed;
    int width, out;
    float factor;
    Embed(Decoder& decoder, const uint16_t* table, const Weight* packed, int width, float factor, int out)
        : decoder(decoder), table(table), packed(packed), width(width), out(out), factor(factor) {}
    const char* name() const override { return "embed"; }
    int tasks(const Step& step) const override { return step.tokens; }
    void work(const Step& step, int begin, int end, int, int) override {
        const Buffer& to = decoder.buffers[out];
        decoder.kernels.embed({step.ids, table, packed, width, factor, to.floats(), to.stride}, begin, end);
    }
};

static QuantizeCall quantizing(const Buffer& from, const Buffer& to) {
    return {from.data, from.kind == FLOATS, from.stride, (int32_t)to.stride, to.quantization, (int8_t*)to.data, to.stride,
            to.scales, to.sums};
}

// out = norm(in), or added: out += norm(in), which is float32 then. Or quantized = norm(in), where that is a buffer: a row
// of `out` for each member is all that is written then.
struct Norm : Operation {
    Decoder& decoder;
    int in, out, quantized;
    const float* weight;
    float eps;
    bool added;
    Norm(Decoder& decoder, int in, const float* weight, float eps, int out, bool added, int quantized)
        : decoder(decoder), in(in), out(out), quantized(quantized), weight(weight), eps(eps), added(added) {}
    const char* name() const override { return "norm"; }
    int tasks(const Step& step) const override { return step.tokens; }
    void work(const Step&, int begin, int end, int, int member) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        const NormMode mode = to.kind == HALVES ? NORM_HALVES : added ? NORM_ADD : NORM_FLOATS;
        NormCall norm = {from.floats(), from.stride, weight, eps, from.width, mode, to.data, to.stride};
        if (quantized < 0) return decoder.kernels.norm(norm, begin, end);
        QuantizeCall quantize = quantizing(to, decoder.buffers[quantized]);
        norm.out = (char*)to.data + to.bytes(member), norm.out_stride = 0;
        quantize.in = norm.out, quantize.in_stride = 0;
        for (int row = begin; row < end; row++) {
            decoder.kernels.norm(norm, row, row + 1);
            decoder.kernels.quantize(quantize, row, row + 1);
        }
    }
};

struct Quantize : Operation {
    Decoder& decoder;
    int in, out;
    Quantize(Decoder& decoder, int in, int out) : decoder(decoder), in(in), out(out) {}
    const char* name() const override { return "quantize"; }
    int tasks(const Step& step) const override { return step.tokens; }
    void work(const Step&, int begin, int end, int, int) override {
        decoder.kernels.quantize(quantizing(decoder.buffers[in], decoder.buffers[out]), begin, end);
    }
};

// Tasks are half panels; two at a time while there are plenty.
struct Linear : Operation {
    Decoder& decoder;
    int in, out;
    const Weight* weight;
    const float* bias;
    LinearMode mode;
    Activation activation;
    const Weight* after = nullptr;  // of the next linear operation
    Linear(Decoder& decoder, int in, const Weight* weight, const float* bias, LinearMode mode, Activation activation, int out)
        : decoder(decoder), in(in), out(out), weight(weight), bias(bias), mode(mode), activation(activation) {}
    const char* name() const override { return "linear"; }
    int tasks(const Step&) const override { return 2 * weight->panels; }
    int grain(int left, int members) const override { return left > 2 * members && left % 2 == 0 ? 2 : 1; }
    void work(const Step& step, int begin, int end, int next, int member) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        const LinearCall call = {weight, from.rows(step.tokens), bias, mode, activation, to.data, to.stride,
                                 mode == GATED && to.kind == FLOATS, nullptr, 0};
        const uint8_t* ahead = nullptr;
        size_t bytes = 0;
        if (next >= 0)
            ahead = weight->data + next / 2 * weight->panel_bytes(), bytes = weight->panel_bytes();
        else if (after && member < after->panels)
            ahead = after->data + member * after->panel_bytes(), bytes = after->panel_bytes();
        decoder.kernels.linear(call, begin, end - begin, ahead, bytes, nullptr);
    }
};

struct Heads : Operation {
    Decoder& decoder;
    int in, out, group, cache_index;
    HeadsCall shape;  // what does not change from step to step
    Heads(Decoder& decoder, int in, int out, int group, int cache_index, const HeadsCall& shape)
        : decoder(decoder), in(in), out(out), group(group), cache_index(cache_index), shape(shape) {}
    const char* name() const override { return "heads"; }
    int tasks(const Step& step) const override { return step.tokens; }
    void work(const Step& step, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        HeadsCall call = shape;
        call.in = from.floats(), call.in_stride = from.stride;
        call.positions = step.positions, call.slots = step.groups[group].slots;
        call.cache.keys = step.caches[cache_index].keys, call.cache.values = step.caches[cache_index].values;
        call.queries = to.halves(), call.queries_stride = to.stride;
        decoder.kernels.heads(call, begin, end);
    }
};

struct Attend : Operation {
    Decoder& decoder;
    int in, out, kind, cache_index;
    AttendCall shape;
    bool plans;  // the first of its kind plans for all
    std::vector<std::atomic<int>> done{};
    Attend(Decoder& decoder, int in, int out, int kind, int cache_index, const AttendCall& shape, bool plans)
        : decoder(decoder), in(in), out(out), kind(kind), cache_index(cache_index), shape(shape), plans(plans) {}
    const char* name() const override { return "attend"; }
    int tasks(const Step&) const override { return (int)decoder.items[kind].items.size(); }
    int grain(int left, int members) const override { return left > 16 * members ? 2 : 1; }
    void prepare(const Step& step) override {
        Items& items = decoder.items[kind];
        const int kv_heads = shape.cache.kv_heads, dim = shape.cache.head_dim;
        if (plans) plan_items(items, step, shape.heads / kv_heads, kv_heads, dim, decoder.pool.size());
        if (decoder.partials.size() < items.partial_floats) decoder.partials.resize(items.partial_floats);
        if (done.size() < items.pieces.size()) done = std::vector<std::atomic<int>>(items.pieces.size());
        for (auto& one : done) one.store(0, std::memory_order_relaxed);
        const Buffer& to = decoder.buffers[out];  // tokens without a key to see: padding
        for (int token = step.cu_q[step.sequences]; token < step.tokens; token++)
            to.clear(token);
        for (int sequence = 0; sequence < step.sequences; sequence++)
            if (step.seq_lens[sequence] == 0)
                for (int token = step.cu_q[sequence]; token < step.cu_q[sequence + 1]; token++) to.clear(token);
    }
    void work(const Step& step, int begin, int end, int next, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        Items& items = decoder.items[kind];
        AttendCall call = shape;
        call.queries = from.halves(), call.queries_stride = from.stride, call.out = to.data, call.out_stride = to.stride;
        call.to_floats = to.kind == FLOATS;
        call.cache.keys = step.caches[cache_index].keys, call.cache.values = step.caches[cache_index].values;
        call.block_table = step.groups[items.kind.group].block_table;
        call.max_blocks = step.groups[items.kind.group].max_blocks;
        call.cu_q = step.cu_q, call.seq_lens = step.seq_lens, call.partials = decoder.partials.data();
        for (int i = begin; i < end; i++) {
            const int following = i + 1 < end ? i + 1 : next;
            decoder.kernels.attend(call, items.items[i], following < 0 ? nullptr : &items.items[following]);
            const int piece = items.piece[i];
            if (piece < 0 || done[piece].fetch_add(1, std::memory_order_acq_rel) + 1 < items.pieces[piece]) continue;
            AttendItem whole = items.items[i];  // whoever finishes last joins; parts of a tile stand together
            for (int first = i; first >= 0 && items.piece[first] == piece; first--) whole = items.items[first];
            decoder.kernels.join(call, whole, items.spans[piece]);
        }
    }
};

}  // namespace chairlift
