#include "decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace chairlift {

namespace {

constexpr size_t HUGE_PAGE = 2u << 20, LINE_BYTES = 64;

size_t rounded(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Zeros on huge pages where the kernel gives them.
void* pages(size_t bytes) {
    const size_t size = rounded(bytes, bytes < HUGE_PAGE ? 4096 : HUGE_PAGE);
    void* memory = aligned_alloc(bytes < HUGE_PAGE ? 4096 : HUGE_PAGE, size);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);
#endif
    memset(memory, 0, size);
    return memory;
}

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

size_t Buffer::bytes(size_t tokens) const {
    return tokens * stride * (kind == FLOATS ? 4 : kind == HALVES ? 2 : 1);
}

size_t Buffer::runs() const { return quantization == INT8_GROUP ? stride / GROUP : 1; }

Rows Buffer::rows(int count) const {
    return {(const uint8_t*)data, bytes(1), count, scales, sums};
}

Decoder::~Decoder() {
    for (Buffer& buffer : buffers) free(buffer.data), free(buffer.scales), free(buffer.sums);
}

int Decoder::add_buffer(BufferKind kind, int width, WeightKind quantization) {
    Buffer buffer = {kind, width, quantization};
    // Whole panels of a weight; of bfloat16 one line more, so that rows do not share the sets of a cache.
    buffer.stride = kind == QUANTIZED ? rounded(width, GROUP)
                                      : rounded(width, PANEL) + (kind == HALVES ? LINE_BYTES / 2 : 0);
    buffers.push_back(buffer);
    return (int)buffers.size() - 1;
}

int Decoder::add_kind(AttendKind kind) {
    for (size_t i = 0; i < items.size(); i++)
        if (items[i].kind.group == kind.group && items[i].kind.window == kind.window) return (int)i;
    items.push_back({kind, {}, {}, {}, {}, 0});
    return (int)items.size() - 1;
}

void Decoder::reserve(int tokens) {
    tokens = std::max(tokens, pool.size());  // each member may keep a row for itself
    for (Buffer& buffer : buffers) {
        free(buffer.data), free(buffer.scales), free(buffer.sums);
        buffer.data = buffer.scales = nullptr, buffer.sums = nullptr;
    }
    for (Buffer& buffer : buffers) {
        buffer.data = pages(buffer.bytes(tokens));
        if (buffer.kind != QUANTIZED) continue;
        buffer.scales = (float*)pages(tokens * buffer.runs() * sizeof(float));
        buffer.sums = (int32_t*)pages(tokens * buffer.runs() * sizeof(int32_t));
    }
}

void Decoder::run(const Step& step) {
    if (counters_ != operations_.size()) {
        counters_ = operations_.size();
        handed_out_ = std::make_unique<std::atomic<int>[]>(counters_);
    }
    for (size_t i = 0; i < counters_; i++) handed_out_[i].store(0, std::memory_order_relaxed);
    const double began = now();
    for (auto& operation : operations_) operation->prepare(step);
    spend("prepare", now() - began);
    struct Both { Decoder* decoder; const Step* step; } both = {this, &step};
    pool.run(
        [](void* context, int member) { ((Both*)context)->decoder->take_part(*((Both*)context)->step, member); }, &both);
}

void Decoder::take_part(const Step& step, int member) {
    const int members = pool.size();
    double began = member ? 0 : now();
    for (size_t index = 0; index < operations_.size(); index++) {
        Operation& operation = *operations_[index];
        std::atomic<int>& counter = handed_out_[index];
        const int total = operation.tasks(step);
        int end;
        auto take = [&]() -> int {
            int begin = counter.load(std::memory_order_relaxed);
            do {
                if (begin >= total) return -1;
                end = std::min(total, begin + operation.grain(total - begin, members));
            } while (!counter.compare_exchange_weak(begin, end, std::memory_order_relaxed));
            return begin;
        };
        for (int begin = take(); begin >= 0;) {
            const int stop = end, next = take();
            operation.work(step, begin, stop, next, member);
            begin = next;
        }
        if (index + 1 < operations_.size()) pool.meet();
        if (member == 0) {
            const double time = now();
            spend(operation.name(), time - began);
            began = time;
        }
    }
}

void Decoder::head(const uint16_t* rows, size_t stride, const int32_t* places, int count, const HeadCall& asked) {
    const double began = now();
    const Weight& weight = *asked.weight;
    const bool quantized = weight.kind != BFLOAT16;
    const size_t runs = weight.kind == INT8_GROUP ? weight.groups() : 1, width = (size_t)weight.steps * (quantized ? 4 : 2);
    const int members = pool.size();
    std::vector<uint16_t> padded(count * width);
    std::vector<int8_t> bytes(quantized ? count * width : 0);
    std::vector<float> scales(quantized ? count * runs : 0);
    std::vector<int32_t> sums(quantized ? count * runs : 0);
    std::vector<Best> bests((size_t)members * 2 * count, Best{-INFINITY, INT32_MAX});
    for (int row = 0; row < count; row++)
        memcpy(&padded[row * width], rows + (places ? places[row] : row) * stride, weight.inputs * sizeof *rows);
    LinearCall call = {&weight, {(const uint8_t*)padded.data(), width * 2, count, nullptr, nullptr}, nullptr, LOGITS,
                       SILU, nullptr, 0, false, asked.wanted, asked.words};
    if (quantized) {
        kernels.quantize(
            {padded.data(), false, width, (int32_t)width, weight.kind, bytes.data(), width, scales.data(), sums.data()}, 0,
            count);
        call.rows = {(const uint8_t*)bytes.data(), width, count, scales.data(), sums.data()};
    }
    struct Job {
        Decoder& decoder;
        const LinearCall& call;
        Best* bests;
        std::atomic<int> next{0};
    } job = {*this, call, bests.data()};
    pool.run(
        [](void* context, int member) {
            Job& job = *(Job*)context;
            const Weight& weight = *job.call.weight;
            Best* bests = job.bests + (size_t)member * 2 * job.call.rows.count;
            for (int panel = job.next++, next; panel < weight.panels; panel = next) {
                next = job.next++;
                const bool more = next < weight.panels;
                const uint8_t* ahead = more ? weight.data + next * weight.panel_bytes() : nullptr;
                job.decoder.kernels.linear(job.call, 2 * panel, 2, ahead, more ? weight.panel_bytes() : 0, bests);
            }
        },
        &job);
    for (int place = 0; place < 2 * count; place++) {
        Best best = bests[place];
        for (int member = 1; member < members; member++) {
            const Best& other = bests[(size_t)member * 2 * count + place];
            if (best.is_beaten_by(other)) best = other;
        }
        asked.values[place] = best.value, asked.ids[place] = best.id;
    }
    spend("head", now() - began);
}

void Decoder::spend(const char* name, double seconds) {
    for (Spent& one : spent_)
        if (one.name == name) return void(one.seconds += seconds);
    spent_.push_back({name, seconds});
}

void plan_items(Items& plan, const Step& step, int shared_heads, int kv_heads, int head_dim, int members) {
    plan.items.clear(), plan.piece.clear(), plan.pieces.clear(), plan.spans.clear();
    struct Tile { int sequence, first_row, rows, first_span, spans; };
    std::vector<Tile> tiles;
    int64_t cost = 0;
    const int most = shared_heads > MAX_ITEM_ROWS ? MAX_ITEM_ROWS : MAX_ITEM_ROWS / shared_heads * shared_heads;
    for (int sequence = 0; sequence < step.sequences; sequence++) {
        const int tokens = step.cu_q[sequence + 1] - step.cu_q[sequence], length = step.seq_lens[sequence];
        for (int row = 0; row < tokens * shared_heads && length > 0; row += most) {
            const int rows = std::min(most, tokens * shared_heads - row);
            const int first = length - tokens + row / shared_heads;
            const int last = length - tokens + (row + rows - 1) / shared_heads;
            const int seen = plan.kind.window && first >= plan.kind.window ? first - plan.kind.window + 1 : 0;
            const Tile tile = {sequence, row, rows, seen / SPAN, last / SPAN - seen / SPAN + 1};
            tiles.push_back(tile);
            cost += (int64_t)tile.spans * kv_heads;
        }
    }
    const int64_t share = std::max<int64_t>(1, cost / (16 * members));
    size_t partial = 0;
    for (const Tile& tile : tiles)
        for (int head = 0; head < kv_heads; head++) {
            const int parts = (int)std::min<int64_t>(tile.spans, (tile.spans + share - 1) / share);
            AttendItem item = {tile.sequence, head, tile.first_row, tile.rows, tile.first_span, tile.spans, -1};
            if (parts <= 1) {
                plan.items.push_back(item), plan.piece.push_back(-1);
                continue;
            }
            for (int part = 0, span = 0; part < parts; part++) {
                const int count = tile.spans / parts + (part < tile.spans % parts);
                item.first_span = tile.first_span + span, item.span_count = count;
                item.partial = (int32_t)(partial + (size_t)span * tile.rows);
                plan.items.push_back(item), plan.piece.push_back((int32_t)plan.pieces.size());
                span += count;
            }
            plan.pieces.push_back(parts), plan.spans.push_back(tile.spans);
            partial += (size_t)tile.spans * tile.rows;
        }
    plan.partial_floats = partial * (head_dim + 2);
}

}  // namespace chairlift
