// Operations of a layer of experts: the choice of each row's experts, their products, and the sum of their outputs.
//
//     logits -> RouteRows -> plan
//     in -> GatherRows -> [gathered] -> ExpertProduct, gated -> [gated] -> Quantize? -> ExpertProduct -> [outputs]
//     [outputs], shared expert -> SumExperts -> out
//
// Buffers of pairs have experts_per_row rows for each token, in the order of places (expert_plan.h). A pair's products
// are those of its row alone, and a row's outputs are added by rank, so a row has the same bits in every batch.
#pragma once

#include <cstring>
#include <memory>

#include "expert_plan.h"
#include "operations.h"

namespace chairlift {

// The buffers and weights of a layer of experts; those that are -1 or null are not there.
struct ExpertsCall {
    int32_t in;                     // the inputs of gate_up, quantized if it is
    int32_t gathered;               // pairs: of the kind of `in`
    int32_t gated, quantized;       // pairs: the inputs of down, which are quantized if it is
    int32_t outputs;                // pairs: float32
    int32_t shared;                 // the output of the shared expert, float32
    int32_t gates, gate_column;     // the factor of `shared` is the sigmoid of a column of a float32 buffer
    int32_t out, adds;              // float32; the sum is written or added
    float factor;                   // of the sum
    Activation activation;
    const Weight* const* gate_up;   // [num_experts], of equal shapes
    const Weight* const* down;      // the same
    const float* gate_up_biases;    // [num_experts][panels * 64] in the order of the panels
    const float* down_biases;       // the same
};

struct RouteRows : Operation {
    Decoder& decoder;
    std::shared_ptr<ExpertPlan> plan;
    int logits;
    RouteRows(Decoder& decoder, std::shared_ptr<ExpertPlan> plan, int logits)
        : decoder(decoder), plan(std::move(plan)), logits(logits) {}
    const char* name() const override { return "route"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void prepare(const Step& step) override { plan->reserve(step.num_tokens, decoder.pool.max_size()); }
    void run(const Step& step, int begin, int end, int, int thread_index) override {
        const Buffer& from = decoder.buffers[logits];
        const int count = plan->settings.experts_per_row;
        float* scratch = &plan->scratch[thread_index * plan->scratch_size()];
        for (int row = begin; row < end; row++)
            choose_experts(
                plan->settings, from.f32() + row * from.stride, scratch, &plan->experts[(size_t)row * count],
                &plan->factors[(size_t)row * count]);
        // acq_rel: the thread that sorts must see the experts that all others have chosen.
        if (plan->num_chosen_rows.fetch_add(end - begin, std::memory_order_acq_rel) + end - begin == step.num_tokens)
            plan->sort(step.num_tokens);
    }
};

// Copies rows beside each other for the products of experts that have several.
struct GatherRows : Operation {
    Decoder& decoder;
    std::shared_ptr<ExpertPlan> plan;
    int in, out;
    GatherRows(Decoder& decoder, std::shared_ptr<ExpertPlan> plan, int in, int out)
        : decoder(decoder), plan(std::move(plan)), in(in), out(out) {}
    const char* name() const override { return "gather"; }
    int num_tasks(const Step&) const override { return (int)plan->gathered.size(); }
    void run(const Step&, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[in], &to = decoder.buffers[out];
        for (int task = begin; task < end; task++) {
            const size_t place = plan->gathered[task], row = plan->row_of_place[place];
            memcpy(
                (char*)to.data + to.bytes(place), (const char*)from.data + from.bytes(row),
                std::min(from.bytes(1), to.bytes(1)));
            if (from.kind != QUANTIZED) continue;
            const size_t scales = from.scales_per_row(), sums = from.sums_per_row();
            memcpy(to.scales + place * scales, from.scales + row * scales, scales * sizeof(float));
            memcpy(to.sums + place * sums, from.sums + row * sums, sums * sizeof(int32_t));
        }
    }
};

// A task is a half panel of one of the experts that have rows. Threads take tasks as Linear does.
struct ExpertProduct : Operation {
    Decoder& decoder;
    std::shared_ptr<ExpertPlan> plan;
    int in, gathered, out;  // gathered: rows of experts that have several; -1: `in` has the rows of all pairs
    std::vector<const Weight*> weights;
    const float* biases;
    LinearMode mode;
    Activation activation;
    ExpertProduct(
        Decoder& decoder, std::shared_ptr<ExpertPlan> plan, int in, int gathered, const Weight* const* weights,
        const float* biases, LinearMode mode, Activation activation, int out)
        : decoder(decoder), plan(std::move(plan)), in(in), gathered(gathered), out(out),
          weights(weights, weights + this->plan->settings.num_experts), biases(biases), mode(mode),
          activation(activation) {}
    const char* name() const override { return "experts"; }
    int halves() const { return 2 * weights[0]->panels; }
    int num_tasks(const Step&) const override { return (int)plan->segments.size() * halves(); }
    int chunk_size(int remaining, int num_threads) const override {
        return remaining > 2 * num_threads && remaining % 2 == 0 ? 2 : 1;
    }

    void run(const Step&, int begin, int end, int next, int) override {
        const Buffer& to = decoder.buffers[out];
        const uint8_t* ahead = nullptr;
        size_t bytes = 0;
        if (next >= 0) {
            const Weight& weight = *weights[plan->segments[next / halves()].expert];
            ahead = weight.data + next % halves() / 2 * weight.panel_bytes(), bytes = weight.panel_bytes();
        }
        for (int task = begin, count; task < end; task += count, bytes = 0) {
            const ExpertPlan::Segment& segment = plan->segments[task / halves()];
            const Weight& weight = *weights[segment.expert];
            const int half = task % halves();
            count = half % 2 == 0 && task + 2 == end ? 2 : 1;
            const float* bias = biases ? biases + (size_t)segment.expert * weight.panels * PANEL : nullptr;
            const LinearCall call = {&weight, rows(segment), bias, mode, activation,
                                     (char*)to.data + to.bytes(segment.first), to.stride,
                                     mode == GATED && to.kind == F32, nullptr, 0};
            decoder.kernels.linear(call, half, count, ahead, bytes, nullptr);
        }
    }

private:
    Activations rows(const ExpertPlan::Segment& segment) const {
        if (gathered >= 0 && segment.count == 1)
            return decoder.buffers[in].rows(1, plan->row_of_place[segment.first]);
        return decoder.buffers[gathered >= 0 ? gathered : in].rows(segment.count, segment.first);
    }
};

struct SumExperts : Operation {
    Decoder& decoder;
    std::shared_ptr<ExpertPlan> plan;
    ExpertsCall call;
    SumExperts(Decoder& decoder, std::shared_ptr<ExpertPlan> plan, const ExpertsCall& call)
        : decoder(decoder), plan(std::move(plan)), call(call) {}
    const char* name() const override { return "sum_experts"; }
    int num_tasks(const Step& step) const override { return step.num_tokens; }
    void run(const Step&, int begin, int end, int, int) override {
        const Buffer &from = decoder.buffers[call.outputs], &to = decoder.buffers[call.out];
        ExpertSum sum = {from.f32(), from.stride, plan->places.data(), plan->factors.data(),
                         plan->settings.experts_per_row, to.width, nullptr, 0, nullptr, 0, call.factor,
                         call.adds != 0, to.f32(), to.stride};
        if (call.shared >= 0)
            sum.shared = decoder.buffers[call.shared].f32(), sum.shared_stride = decoder.buffers[call.shared].stride;
        if (call.shared >= 0 && call.gates >= 0) {
            const Buffer& gates = decoder.buffers[call.gates];
            sum.gates = gates.f32() + call.gate_column, sum.gates_stride = gates.stride;
        }
        decoder.kernels.sum_experts(sum, begin, end);
    }
};

// Adds the operations of a layer of experts whose rows a RouteRows has sent to them. Throws std::bad_alloc.
inline void add_experts(Decoder& decoder, const std::shared_ptr<ExpertPlan>& plan, const ExpertsCall& call) {
    decoder.add(std::make_unique<GatherRows>(decoder, plan, call.in, call.gathered));
    decoder.add(std::make_unique<ExpertProduct>(
        decoder, plan, call.in, call.gathered, call.gate_up, call.gate_up_biases, GATED, call.activation, call.gated));
    if (call.quantized >= 0)
        decoder.add(std::make_unique<Quantize>(decoder, call.gated, call.quantized, plan->settings.experts_per_row));
    decoder.add(std::make_unique<ExpertProduct>(
        decoder, plan, call.quantized >= 0 ? call.quantized : call.gated, -1, call.down, call.down_biases, STORE, SILU,
        call.outputs));
    decoder.add(std::make_unique<SumExperts>(decoder, plan, call));
}

}  // namespace chairlift
