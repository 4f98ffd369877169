// C interface for Python (library.py). A function that fails returns null or a number below 0. None throws.
#include <cstring>
#include <new>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "experts.h"
#include "operations.h"
#include "pack.h"
#include "sampling.h"
#include "tensors.h"

#define API extern "C" __attribute__((visibility("default")))

using namespace chairlift;

namespace {

#if defined(__x86_64__)
// Older compilers have no names for these.
bool has_f16c() {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 29 & 1);
}

// Linux lets a process use the tile registers once it has asked for them: see "x86 XSTATE" in its documentation. A
// thread whose alternate stack for signals is too small for them is a reason to refuse.
bool may_use_amx() {
#if defined(CHAIRLIFT_EMULATES_AMX)
    return true;
#endif
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    unsigned eax, ebx, ecx, edx;
    static const bool may = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 22 & 1) && (edx >> 24 & 1) &&
                            syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return may;
}

bool has_avx_vnni() {
#if defined(CHAIRLIFT_EMULATES_AVX_VNNI)
    return true;
#endif
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1);
}
#endif

const Kernels* kernels_of(const char* name) {
    const auto get = [](const Kernels* (*kernels)()) { return kernels ? kernels() : nullptr; };
    if (!strcmp(name, "portable")) return get(kernels_portable);
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (avx2 && has_avx_vnni() && !strcmp(name, "avx2_vnni")) return get(kernels_avx2_vnni);
    if (avx2 && !strcmp(name, "avx2")) return get(kernels_avx2);
    if (avx512 && !strcmp(name, "avx512")) return get(kernels_avx512);
    if (bf16 && !strcmp(name, "avx512_bf16")) return get(kernels_avx512_bf16);
#if defined(CHAIRLIFT_EMULATES_AMX)
    const bool has_others = true;
#else
    const bool has_others = bf16 && kernels_avx512_bf16;
#endif
    if (!strcmp(name, "amx_bf16") && has_others && kernels_amx_bf16 && may_use_amx()) return kernels_amx_bf16();
#elif defined(__aarch64__)
    if (!strcmp(name, "neon")) return get(kernels_neon);
    if (!strcmp(name, "neon_dotprod") && getauxval(AT_HWCAP) & HWCAP_ASIMDDP) return get(kernels_neon_dotprod);
#endif
    return nullptr;
}

}  // namespace

// Returns 1 if the kernels of this instruction set are compiled in and this processor has the instructions, else 0.
API int chairlift_has(const char* name) { return kernels_of(name) != nullptr; }

#ifndef CHAIRLIFT_SETS
#error "compile with -DCHAIRLIFT_SETS=<names of the instruction sets, as a string>"
#endif

// Returns the instruction sets whose kernels are compiled in. compile.py finds this text in the file of the library.
API const char* chairlift_compiled_sets() { return "compiled sets: " CHAIRLIFT_SETS; }

// Writes the sizes in bytes of the structs that Python fills in, in this order.
API void chairlift_sizes(size_t* sizes) {
    sizes[0] = sizeof(Weight), sizes[1] = sizeof(StepGroup), sizes[2] = sizeof(StepCache), sizes[3] = sizeof(Step);
    sizes[4] = sizeof(TruncationParams), sizes[5] = sizeof(LogitsRow), sizes[6] = sizeof(Plan);
    sizes[7] = sizeof(LMHeadCall), sizes[8] = sizeof(RouterSettings), sizes[9] = sizeof(ExpertsCall);
    sizes[10] = sizeof(StepState), sizes[11] = sizeof(StateSave), sizes[12] = sizeof(RecurrenceShape);
}

API void* chairlift_pool_new(const int32_t* cpus, int count) {
    try {
        return new ThreadPool(std::vector<int>(cpus, cpus + count));
    } catch (...) {
        return nullptr;
    }
}

// Returns whether the pool has `size` new threads, with the priority of the calling thread; else it keeps the old ones.
API int chairlift_pool_renew_threads(void* pool, int size) {
    try {
        ((ThreadPool*)pool)->renew_threads(size);
        return 1;
    } catch (...) {
        return 0;
    }
}

API void chairlift_pool_free(void* pool) { delete (ThreadPool*)pool; }

// errors: adds the sums of squared errors and of squares of the packed values.
API int chairlift_pack(
    void* pool, const Weight* weight, const void* rows, int is_f32, int count, int placement, int first,
    double* errors) {
    try {
        const QuantizationError error =
            pack(*(ThreadPool*)pool, *weight, rows, is_f32, count, (Placement)placement, first);
        errors[0] += error.squared_error, errors[1] += error.squared_norm;
        return 0;
    } catch (...) {
        return -1;
    }
}

// Returns the number of damaged blocks, or -1 without memory.
API int64_t chairlift_pack_blocks(
    void* pool, const Weight* weight, const void* rows, size_t row_bytes, const int32_t* order, int count,
    int placement, int first) {
    try {
        return pack_blocks(
            *(ThreadPool*)pool, *weight, (const uint8_t*)rows, row_bytes, order, count, (Placement)placement, first);
    } catch (...) {
        return -1;
    }
}

API void* chairlift_decoder_new(void* pool, const char* instruction_set) {
    const Kernels* kernels = kernels_of(instruction_set);
    return kernels ? new (std::nothrow) Decoder(*(ThreadPool*)pool, *kernels) : nullptr;
}

API void chairlift_decoder_free(void* decoder) { delete (Decoder*)decoder; }

API int chairlift_add_buffer(void* decoder, int kind, int width, int quantization) {
    return ((Decoder*)decoder)->add_buffer((BufferKind)kind, width, (WeightKind)quantization);
}

// A buffer with several rows for each token.
API int chairlift_add_buffer_of_pairs(void* decoder, int kind, int width, int quantization, int rows_per_token) {
    return ((Decoder*)decoder)->add_buffer((BufferKind)kind, width, (WeightKind)quantization, rows_per_token);
}

// table_kind: BFLOAT16, FLOAT16 or FLOAT32.
API void chairlift_add_embed(
    void* decoder, const void* table, int table_kind, const Weight* packed, int width, float factor, int out) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Embed>(to, table, (WeightKind)table_kind, packed, width, factor, out));
}

// quantized: the buffer for the quantized norm, or -1. With a buffer, `out` is scratch memory.
API void chairlift_add_norm(
    void* decoder, int in, const float* weight, float eps, int out, int adds, int quantized) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Norm>(to, in, weight, eps, out, adds != 0, quantized));
}

// out = factor * (out + norm(in)) of float32 buffers, for each of `groups` groups of `width` numbers. weight: [width].
API void chairlift_add_sum_norm(
    void* decoder, int in, const float* weight, float eps, int groups, int width, float factor, int out) {
    Decoder& to = *(Decoder*)decoder;
    NormCall shape = {};
    shape.weight = weight, shape.eps = eps, shape.width = width, shape.mode = NORM_ADD, shape.factor = factor;
    to.add(std::make_unique<AddNorm>(to, in, out, groups, shape));
}

API void chairlift_add_quantize(void* decoder, int in, int out) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Quantize>(to, in, out));
}

// weights: `count` of them, whose outputs follow each other; all but the last have a multiple of 32 outputs.
// next_weight: the first weight of the next linear operation, or null.
API void chairlift_add_linear(
    void* decoder, int in, const Weight* const* weights, int count, const float* bias, int mode, int activation,
    const Weight* next_weight, int out) {
    Decoder& to = *(Decoder*)decoder;
    auto linear = std::make_unique<Linear>(
        to, in, std::vector<const Weight*>(weights, weights + count), bias, (LinearMode)mode, (Activation)activation,
        out);
    linear->next_weight = next_weight;
    to.add(std::move(linear));
}

// The cache has the dtype of the buffer for queries: `out`, and `in` of attention. num_keys: 0 where the layer reads the
// keys and values of another one; num_values: 0 where it has none or values are keys before norm and rotation.
API void chairlift_add_rope_cache(
    void* decoder, int in, int out, int group, int cache_index, int num_heads, int num_kv_heads, int head_dim,
    int block_size, size_t block_elements, int num_keys, int num_values, const float* norm, float eps, int norms_values,
    int norm_is_joint, const float* cosines, const float* sines, const float* query_scales) {
    Decoder& to = *(Decoder*)decoder;
    RopeCacheCall shape = {};
    shape.num_heads = num_heads, shape.norm = norm, shape.eps = eps, shape.cosines = cosines, shape.sines = sines;
    shape.norm_is_joint = norm_is_joint != 0, shape.query_scales = query_scales;
    shape.num_keys = num_keys, shape.first_value = num_values ? num_heads + num_keys : num_heads;
    shape.norms_values = norms_values != 0;
    shape.cache = {nullptr, nullptr, false, block_size, num_kv_heads, head_dim, block_elements};
    to.add(std::make_unique<RopeCache>(to, in, out, group, cache_index, shape));
}

API void chairlift_add_attention(
    void* decoder, int in, int out, int group, int cache_index, int num_heads, int num_kv_heads, int head_dim,
    int block_size, size_t block_elements, float scale, float softcap, int window, const float* sinks) {
    Decoder& to = *(Decoder*)decoder;
    AttentionCall shape = {};
    shape.cache = {nullptr, nullptr, false, block_size, num_kv_heads, head_dim, block_elements};
    shape.num_heads = num_heads, shape.scale = scale, shape.softcap = softcap, shape.window = window;
    shape.sinks = sinks;
    const size_t num_plans = to.attention_plans.size();
    const int plan_index = to.add_attention_plan({group, window});
    // The first layer of a kind makes the plan in prepare(), before all others use it.
    const bool is_new = to.attention_plans.size() > num_plans;
    to.add(std::make_unique<AttentionOp>(to, in, out, plan_index, cache_index, shape, is_new));
}

// in: the float32 buffer with the gates, from `column` on; out: what is multiplied by their sigmoid.
API void chairlift_add_gate(void* decoder, int in, int column, int width, int out) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<MultiplyByGate>(to, in, column, width, out));
}

// gate, in: float32 buffers; the ups are columns of `in` from `column` on.
API void chairlift_add_activation(void* decoder, int gate, int in, int column, int width, int activation, int out) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<MultiplyActivated>(to, gate, in, column, width, (Activation)activation, out));
}

// Chooses experts from logits, a float32 buffer. Returns the number of the router's plan, or -1 without memory.
API int chairlift_add_router(void* decoder, const RouterSettings* settings, int logits) {
    try {
        Decoder& to = *(Decoder*)decoder;
        to.expert_plans.push_back(std::make_shared<ExpertPlan>(*settings));
        to.add(std::make_unique<RouteRows>(to, to.expert_plans.back(), logits));
        return (int)to.expert_plans.size() - 1;
    } catch (...) {
        return -1;
    }
}

// plan: what chairlift_add_router returned. Returns 0, or -1 without memory.
API int chairlift_add_experts(void* decoder, int plan, const ExpertsCall* experts) {
    try {
        Decoder& to = *(Decoder*)decoder;
        add_experts(to, to.expert_plans[plan], *experts);
        return 0;
    } catch (...) {
        return -1;
    }
}

// layer: index among the layers with states. `in` is float32; its channels begin at first_column. With gates, B, C and x
// follow each other from there, and there is no SiLU. weights: [width, channels]; bias: [channels] or null.
API void chairlift_add_convolution(
    void* decoder, int in, int out, int layer, int first_column, int channels, int width, const float* weights,
    const float* bias, int is_gated) {
    Decoder& to = *(Decoder*)decoder;
    ConvolutionCall shape = {};
    shape.first_column = first_column, shape.is_gated = is_gated != 0, shape.weights = weights, shape.bias = bias;
    shape.width = width, shape.channels = channels;
    to.add(std::make_unique<Convolution>(to, in, out, layer, shape));
}

// in: the convolution's output; projection: the buffer that a, b and dt are in; out: [tokens, num_heads * value_dim]. All
// are float32.
API void chairlift_add_recurrence(
    void* decoder, int in, int projection, int out, int layer, const RecurrenceShape* shape) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Recurrence>(to, in, projection, out, layer, *shape));
}

// gate: the float32 buffer with the gates, from gate_column on. weight: [width]; group_width: numbers of one norm.
API void chairlift_add_gated_norm(
    void* decoder, int in, int gate, int gate_column, int width, int group_width, const float* weight, float eps,
    int gates_first, int is_sigmoid, int out) {
    Decoder& to = *(Decoder*)decoder;
    GatedNormCall shape = {};
    shape.weight = weight, shape.width = width, shape.group_width = group_width, shape.eps = eps;
    shape.gates_first = gates_first != 0, shape.is_sigmoid = is_sigmoid != 0;
    to.add(std::make_unique<GatedNorm>(to, in, gate, gate_column, out, shape));
}

API int chairlift_reserve(void* decoder, int tokens) {
    try {
        ((Decoder*)decoder)->reserve(tokens);
        return 0;
    } catch (...) {
        return -1;
    }
}

API int chairlift_run(void* decoder, const Step* step) {
    try {
        ((Decoder*)decoder)->run(*step);
        return 0;
    } catch (...) {
        return -1;
    }
}

// Runs all operations with memory of the caller in the place of the buffers `in` and `out`; strides in elements.
API int chairlift_run_on(
    void* decoder, const Step* step, int in, void* in_data, size_t in_stride, int out, void* out_data,
    size_t out_stride) {
    try {
        ((Decoder*)decoder)->run_on(*step, in, in_data, in_stride, out, out_data, out_stride);
        return 0;
    } catch (...) {
        return -1;
    }
}

// Runs a plan and, if lm_head is not null, the lm_head on its samples. Returns 0 or a PlanError.
// states: the buffer of the final hidden states.
API int chairlift_run_plan(void* decoder, Plan* plan, int states, const LMHeadCall* lm_head) {
    try {
        Decoder& on = *(Decoder*)decoder;
        const PlanError error = on.planned_step.fill(*plan);
        if (error) return error;
        on.run(on.planned_step.step);
        const Buffer& hidden = on.buffers[states];
        const Rows rows = {hidden.data, hidden.kind == F32, hidden.stride, plan->num_samples};
        if (lm_head) on.lm_head(rows, plan->sample_tokens(), *lm_head);
        return NO_ERROR;
    } catch (...) {
        return OUT_OF_MEMORY;
    }
}

// Returns the address of a buffer. stride: bytes between its rows.
API void* chairlift_buffer(void* decoder, int index, size_t* stride) {
    const Buffer& buffer = ((Decoder*)decoder)->buffers[index];
    *stride = buffer.bytes(1);
    return buffer.data;
}

API int chairlift_lm_head(
    void* decoder, const void* rows, int is_f32, size_t stride, int count, const LMHeadCall* call) {
    try {
        ((Decoder*)decoder)->lm_head({rows, is_f32 != 0, stride, count}, nullptr, *call);
        return 0;
    } catch (...) {
        return -1;
    }
}

// Writes the seconds of each kind of operation in thread 0 since the last call. Returns the number of kinds.
API int chairlift_op_seconds(void* decoder, const char** names, double* seconds, int capacity) {
    Decoder& from = *(Decoder*)decoder;
    int count = 0;
    for (const OpTime& entry : from.op_times()) {
        if (count == capacity) break;
        names[count] = entry.name, seconds[count] = entry.seconds, count++;
    }
    from.clear_op_times();
    return count;
}

// Calls function(kernels) with the kernels of an instruction set. Returns 0; -1 without memory, -2 for an unknown set.
template <typename Function>
static int with_kernels(const char* instruction_set, Function function) {
    const Kernels* kernels = kernels_of(instruction_set);
    if (!kernels) return -2;
    try {
        function(*kernels);
        return 0;
    } catch (...) {
        return -1;
    }
}

// Returns the multiply-adds per second of one thread without memory accesses; 0 for an unknown set.
API double chairlift_peak_rate(const char* instruction_set, int kind) {
    const Kernels* kernels = kernels_of(instruction_set);
    return kernels ? kernels->peak_rate((WeightKind)kind) : 0.0;
}

API int chairlift_sample(
    void* pool, const char* instruction_set, const float* logits, int rows, int vocabulary, size_t stride,
    const TruncationParams* params, int64_t* tokens) {
    return with_kernels(instruction_set, [=](const Kernels& kernels) {
        sample(*(ThreadPool*)pool, kernels, {logits, rows, vocabulary, stride}, params, tokens);
    });
}

API int chairlift_top_k(
    void* pool, const char* instruction_set, const float* logits, int rows, int vocabulary, size_t stride, int count,
    float* values, int64_t* ids) {
    return with_kernels(instruction_set, [=](const Kernels& kernels) {
        top_k(*(ThreadPool*)pool, kernels, {logits, rows, vocabulary, stride}, count, values, ids);
    });
}

API int chairlift_logsumexp(
    void* pool, const char* instruction_set, const float* logits, int rows, int vocabulary, size_t stride,
    double* sums) {
    return with_kernels(instruction_set, [=](const Kernels& kernels) {
        logsumexp(*(ThreadPool*)pool, kernels, {logits, rows, vocabulary, stride}, sums);
    });
}

API int chairlift_multiply(
    void* pool, const char* instruction_set, const Weight* weight, const float* bias, int is_gated, int activation,
    const void* rows, int is_f32, size_t stride, int count, void* out, size_t out_stride) {
    return with_kernels(instruction_set, [=](const Kernels& kernels) {
        multiply(
            *(ThreadPool*)pool, kernels, *weight, bias, is_gated, (Activation)activation,
            {rows, is_f32 != 0, stride, count}, out, out_stride);
    });
}

API int chairlift_rms_norm(
    void* pool, const char* instruction_set, const void* rows, int is_f32, size_t stride, int count, int width,
    const float* factors, float eps, void* out, size_t out_stride) {
    return with_kernels(instruction_set, [=](const Kernels& kernels) {
        rms_norm(
            *(ThreadPool*)pool, kernels, {rows, is_f32 != 0, stride, count}, width, factors, eps, out, out_stride);
    });
}

API int chairlift_store_kv(
    void* pool, void* cached_keys, void* cached_values, int is_f32, int block_size, int num_kv_heads, int head_dim,
    size_t block_elements, const void* keys, int64_t key_token_stride, int64_t key_head_stride, const void* values,
    int64_t value_token_stride, int64_t value_head_stride, const int64_t* slot_mapping, int count) {
    try {
        const KVCache cache = {
            cached_keys, cached_values, is_f32 != 0, block_size, num_kv_heads, head_dim, block_elements};
        store_kv(
            *(ThreadPool*)pool, cache, {keys, key_token_stride, key_head_stride},
            {values, value_token_stride, value_head_stride}, slot_mapping, count);
        return 0;
    } catch (...) {
        return -1;
    }
}
