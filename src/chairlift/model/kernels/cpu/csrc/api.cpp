// What Python calls (library.py). Functions that can fail return null or a number below 0; none throws.
#include <cstring>
#include <new>

#include "draw.h"
#include "operations.h"
#include "pack.h"

#define API extern "C" __attribute__((visibility("default")))

using namespace chairlift;

namespace {

const Kernels* kernels_named(const char* name) {
    if (!strcmp(name, "portable")) return kernels_portable();
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    if (avx2 && !strcmp(name, "avx2")) return kernels_avx2();
    if (avx512 && !strcmp(name, "avx512")) return kernels_avx512();
    if (bf16 && !strcmp(name, "avx512_bf16")) return kernels_avx512_bf16();
#endif
    return nullptr;
}

}  // namespace

// 1 where the kernels of this name are compiled in and this processor has what they need.
API int chairlift_has(const char* name) { return kernels_named(name) != nullptr; }

// Bytes of the structs that Python fills in: Weight, StepGroup, StepCache, Step, Rule.
API void chairlift_sizes(size_t* sizes) {
    sizes[0] = sizeof(Weight), sizes[1] = sizeof(StepGroup), sizes[2] = sizeof(StepCache), sizes[3] = sizeof(Step);
    sizes[4] = sizeof(Rule), sizes[5] = sizeof(HeadRow), sizes[6] = sizeof(Plan), sizes[7] = sizeof(HeadCall);
}

API void* chairlift_pool_new(const int32_t* cpus, int count) {
    try {
        return new Pool(std::vector<int>(cpus, cpus + count));
    } catch (...) {
        return nullptr;
    }
}

API void chairlift_pool_free(void* pool) { delete (Pool*)pool; }

// errors: squared errors and squares of what was packed so far, added to.
API int chairlift_pack(
    void* pool, const Weight* weight, const uint16_t* rows, int count, int placement, int first, double* errors) {
    try {
        const Error error = pack(*(Pool*)pool, *weight, rows, count, (Placement)placement, first);
        errors[0] += error.squares, errors[1] += error.of;
        return 0;
    } catch (...) {
        return -1;
    }
}

API void* chairlift_decoder_new(void* pool, const char* kernels) {
    const Kernels* found = kernels_named(kernels);
    return found ? new (std::nothrow) Decoder(*(Pool*)pool, *found) : nullptr;
}

API void chairlift_decoder_free(void* decoder) { delete (Decoder*)decoder; }

API int chairlift_add_buffer(void* decoder, int kind, int width, int quantization) {
    return ((Decoder*)decoder)->add_buffer((BufferKind)kind, width, (WeightKind)quantization);
}

API void chairlift_add_embed(
    void* decoder, const uint16_t* table, const Weight* packed, int width, float factor, int out) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Embed>(to, table, packed, width, factor, out));
}

// quantized: the buffer that the norm goes on into, or -1; `out` is not to be read then.
API void chairlift_add_norm(
    void* decoder, int in, const float* weight, float eps, int out, int added, int quantized) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Norm>(to, in, weight, eps, out, added != 0, quantized));
}

API void chairlift_add_quantize(void* decoder, int in, int out) {
    Decoder& to = *(Decoder*)decoder;
    to.add(std::make_unique<Quantize>(to, in, out));
}

// after: the weight of the linear operation that will follow, or null.
API void chairlift_add_linear(
    void* decoder, int in, const Weight* weight, const float* bias, int mode, int activation, const Weight* after, int out) {
    Decoder& to = *(Decoder*)decoder;
    auto linear = std::make_unique<Linear>(to, in, weight, bias, (LinearMode)mode, (Activation)activation, out);
    linear->after = after;
    to.add(std::move(linear));
}

API void chairlift_add_heads(
    void* decoder, int in, int out, int group, int cache_index, int heads, int kv_heads, int head_dim, int block_size,
    const float* norm, float eps, const float* cosines, const float* sines) {
    Decoder& to = *(Decoder*)decoder;
    HeadsCall shape = {};
    shape.heads = heads, shape.norm = norm, shape.eps = eps, shape.cosines = cosines, shape.sines = sines;
    shape.cache = {nullptr, nullptr, block_size, kv_heads, head_dim};
    to.add(std::make_unique<Heads>(to, in, out, group, cache_index, shape));
}

API void chairlift_add_attend(
    void* decoder, int in, int out, int group, int cache_index, int heads, int kv_heads, int head_dim, int block_size,
    float scale, float softcap, int window, const float* sinks) {
    Decoder& to = *(Decoder*)decoder;
    AttendCall shape = {};
    shape.cache = {nullptr, nullptr, block_size, kv_heads, head_dim};
    shape.heads = heads, shape.scale = scale, shape.softcap = softcap, shape.window = window, shape.sinks = sinks;
    const size_t kinds = to.items.size();
    const int kind = to.add_kind({group, window});
    to.add(std::make_unique<Attend>(to, in, out, kind, cache_index, shape, to.items.size() > kinds));
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

// Runs a plan, and where there is a head says of its samples what is wanted; returns 0, or why not.
API int chairlift_run_plan(void* decoder, Plan* plan, int states, const HeadCall* head) {
    try {
        Decoder& runs = *(Decoder*)decoder;
        const PlanFault fault = runs.planned.fill(*plan);
        if (fault) return fault;
        runs.run(runs.planned.step);
        const Buffer& found = runs.buffers[states];
        if (head) runs.head((const uint16_t*)found.data, found.stride, runs.planned.samples(), plan->samples, *head);
        return NO_FAULT;
    } catch (...) {
        return NO_MEMORY;
    }
}

// Where a buffer lies, and the bytes between its rows.
API void* chairlift_buffer(void* decoder, int index, size_t* stride) {
    const Buffer& buffer = ((Decoder*)decoder)->buffers[index];
    *stride = buffer.bytes(1);
    return buffer.data;
}

API int chairlift_head(
    void* decoder, const uint16_t* rows, size_t stride, int count, const HeadCall* call) {
    try {
        ((Decoder*)decoder)->head(rows, stride, nullptr, count, *call);
        return 0;
    } catch (...) {
        return -1;
    }
}

// Seconds of each kind of operation in member 0 since the last call; returns how many there are.
API int chairlift_spent(void* decoder, const char** names, double* seconds, int room) {
    Decoder& from = *(Decoder*)decoder;
    int count = 0;
    for (const Spent& one : from.spent()) {
        if (count == room) break;
        names[count] = one.name, seconds[count] = one.seconds, count++;
    }
    from.forget_spent();
    return count;
}

// Calls each(kernels) of an instruction set; returns 0, or a number below 0 where there is no such set, or no memory.
template <typename Each>
static int with_kernels(const char* name, Each each) {
    const Kernels* found = kernels_named(name);
    if (!found) return -2;
    try {
        each(*found);
        return 0;
    } catch (...) {
        return -1;
    }
}

API int chairlift_draw(
    void* pool, const char* kernels, const float* logits, int rows, int vocabulary, size_t stride, const Rule* rules,
    int64_t* tokens) {
    return with_kernels(kernels, [=](const Kernels& found) {
        draw(*(Pool*)pool, found, {logits, rows, vocabulary, stride}, rules, tokens);
    });
}

API int chairlift_likeliest(
    void* pool, const char* kernels, const float* logits, int rows, int vocabulary, size_t stride, int count,
    float* values, int64_t* ids) {
    return with_kernels(kernels, [=](const Kernels& found) {
        likeliest(*(Pool*)pool, found, {logits, rows, vocabulary, stride}, count, values, ids);
    });
}

API int chairlift_log_sums(
    void* pool, const char* kernels, const float* logits, int rows, int vocabulary, size_t stride, double* sums) {
    return with_kernels(kernels, [=](const Kernels& found) {
        log_sums(*(Pool*)pool, found, {logits, rows, vocabulary, stride}, sums);
    });
}
