#include "draw.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>

namespace chairlift {
namespace {

constexpr int BINS = 2048;
constexpr int DEEP = 8;  // places for the last bin, where most logits lie: to add to one again and again is slow
constexpr double DEEPEST = 50.0;  // e**-50 of a whole vocabulary is less than what float64 can tell of the sum

struct Candidate {
    float value;
    int32_t id;
    bool operator<(const Candidate& other) const {  // likeliest first, of equals the lower id
        return value > other.value || (value == other.value && id < other.id);
    }
};

// The tokens that stay: all above the last one, in the order of candidates, and itself.
struct Last {
    float value = -INFINITY;
    int32_t id = INT_MAX;
    bool keeps(float other, int32_t at) const { return other > value || (other == value && at <= id); }
};

// One row at a time, with memory of its own that is used again for the next one.
class Row {
public:
    Row(const Kernels& kernels, int vocabulary) : kernels_(kernels), vocabulary_(vocabulary) {
        blocks_.resize((vocabulary + DRAW_BLOCK - 1) / DRAW_BLOCK);
        sums_.resize(blocks_.size());
    }

    void take(const float* logits) {
        logits_ = logits;
        kernels_.peaks(logits, vocabulary_, blocks_.data());
        peak_ = *std::max_element(blocks_.begin(), blocks_.end());
    }

    int64_t draw(const Rule& rule) {
        if (rule.top_k > 0 && rule.top_k < vocabulary_) {
            collect((int)rule.top_k);
            return draw_among(rule);
        }
        return draw_of_all(rule, rule.top_p < 1 ? last_of_mass(rule) : Last());
    }

    void likeliest(int count, float* values, int64_t* ids) {
        collect(count);
        std::partial_sort(found_.begin(), found_.begin() + count, found_.end());
        for (int i = 0; i < count; i++) values[i] = found_[i].value, ids[i] = found_[i].id;
    }

    double log_sum() {
        double total = 0.0;
        for (size_t block = 0; block < blocks_.size(); block++) {
            const int count = weigh(block, 1.0);
            double sum = 0.0;
            for (int i = 0; i < count; i++) sum += weights_[i];
            total += sum;
        }
        return std::log(total);
    }

private:
    int begin_of(size_t block) const { return (int)block * DRAW_BLOCK; }

    int weigh(size_t block, double temperature) {
        const int count = std::min(DRAW_BLOCK, vocabulary_ - begin_of(block));
        kernels_.weigh(logits_ + begin_of(block), count, peak_, temperature, weights_);
        return count;
    }

    // Finds all that are at least as likely as the k-th, by ascending id.
    //
    // The k largest blocks' maxima are k logits, so the smallest of these is no larger than the k-th logit.
    void collect(int k) {
        float bound = -INFINITY;
        if ((size_t)k <= blocks_.size()) {
            values_.assign(blocks_.begin(), blocks_.end());
            bound = kth(k);
        }
        found_.clear();
        for (size_t block = 0; block < blocks_.size(); block++) {
            if (blocks_[block] < bound) continue;
            const int end = std::min(vocabulary_, begin_of(block) + DRAW_BLOCK);
            for (int id = begin_of(block); id < end; id++)
                if (logits_[id] >= bound) found_.push_back({logits_[id], id});
        }
        values_.clear();
        for (const Candidate& one : found_) values_.push_back(one.value);
        const float least = kth(k);
        found_.erase(
            std::remove_if(found_.begin(), found_.end(), [least](const Candidate& one) { return one.value < least; }),
            found_.end());
    }

    float kth(int k) {
        std::nth_element(values_.begin(), values_.begin() + (k - 1), values_.end(), [](float a, float b) { return a > b; });
        return values_[k - 1];
    }

    // Draws among what was collected.
    int64_t draw_among(const Rule& rule) {
        const size_t count = found_.size();
        values_.clear();
        for (const Candidate& one : found_) values_.push_back(one.value);
        masses_.resize((count + DRAW_BLOCK - 1) / DRAW_BLOCK * DRAW_BLOCK);
        for (size_t begin = 0; begin < count; begin += DRAW_BLOCK) {
            const int here = (int)std::min<size_t>(DRAW_BLOCK, count - begin);
            kernels_.weigh(values_.data() + begin, here, peak_, rule.temperature, masses_.data() + begin);
        }
        if (rule.top_p < 1) drop_tail(rule.top_p, count);
        double total = 0.0;
        for (size_t i = 0; i < count; i++) total += masses_[i] < rule.min_p ? 0.0 : masses_[i];
        const double target = total * rule.number;
        double run = 0.0;
        int64_t token = 0;
        for (size_t i = 0; i < count; i++) {
            if (masses_[i] < rule.min_p || masses_[i] == 0.0) continue;
            token = found_[i].id;
            run += masses_[i];
            if (run > target) break;
        }
        return token;
    }

    // Takes the masses of those away before which top_p of all has been summed, likeliest first.
    void drop_tail(double top_p, size_t count) {
        order_.resize(count);
        for (size_t i = 0; i < count; i++) order_[i] = (int32_t)i;
        std::sort(order_.begin(), order_.end(), [this](int32_t a, int32_t b) { return found_[a] < found_[b]; });
        double total = 0.0;
        for (int32_t i : order_) total += masses_[i];
        double before = 0.0;
        for (int32_t i : order_) {
            const double mass = masses_[i];
            if (!(before < top_p * total)) masses_[i] = 0.0;
            before += mass;
        }
    }

    int bin_of(float value, double scale) const {
        const double depth = ((double)peak_ - value) * scale, deepest = BINS - 1;
        return (int)(depth < deepest ? depth : deepest);
    }

    // The last token, likeliest first, before which less than top_p of the mass of all has been summed.
    //
    // Masses are summed in bins by how far a logit lies below the largest; only the bin in which the sum gets there has to
    // be put in order.
    Last last_of_mass(const Rule& rule) {
        const double scale = (BINS - 1) / (DEEPEST * rule.temperature);
        std::fill(bins_, bins_ + BINS + DEEP, 0.0);
        for (size_t block = 0; block < blocks_.size(); block++) {
            const int count = weigh(block, rule.temperature);
            const float* logits = logits_ + begin_of(block);
            int places[DRAW_BLOCK];  // by themselves first: without branches, which would be guessed wrong
            for (int i = 0; i < count; i++) {
                const int bin = bin_of(logits[i], scale);
                places[i] = bin + (bin == BINS - 1 ? i % DEEP : 0);
            }
            for (int i = 0; i < count; i++) bins_[places[i]] += weights_[i];
        }
        for (int i = BINS; i < BINS + DEEP; i++) bins_[BINS - 1] += bins_[i];
        double total = 0.0;
        for (int i = 0; i < BINS; i++) total += bins_[i];
        const double limit = rule.top_p * total;
        double before = 0.0;
        int bin = 0;
        while (bin < BINS - 1 && before + bins_[bin] < limit) before += bins_[bin++];
        found_.clear();
        for (size_t block = 0; block < blocks_.size(); block++) {
            if (bin_of(blocks_[block], scale) > bin) continue;
            const int end = std::min(vocabulary_, begin_of(block) + DRAW_BLOCK);
            for (int id = begin_of(block); id < end; id++)
                if (bin_of(logits_[id], scale) == bin) found_.push_back({logits_[id], id});
        }
        std::sort(found_.begin(), found_.end());
        Last last;
        for (const Candidate& one : found_) {
            if (!(before < limit)) break;
            last.value = one.value, last.id = one.id;
            double mass[DRAW_BLOCK];
            kernels_.weigh(&one.value, 1, peak_, rule.temperature, mass);
            before += mass[0];
        }
        return last;
    }

    // Draws among all that `last` and min_p keep.
    int64_t draw_of_all(const Rule& rule, const Last& last) {
        double total = 0.0;
        for (size_t block = 0; block < blocks_.size(); block++) {
            sums_[block] = blocks_[block] < last.value ? 0.0 : kept(block, rule, last);
            total += sums_[block];
        }
        const double target = total * rule.number;
        double run = 0.0;
        size_t block = 0, at = 0;
        for (; block < blocks_.size(); block++) {
            if (sums_[block] > 0.0) at = block;
            if (run + sums_[block] > target) break;
            run += sums_[block];
        }
        if (block == blocks_.size()) run -= sums_[at];  // the number is so near to 1 that the sums do not tell
        kept(at, rule, last);
        int64_t token = begin_of(at);
        const int count = std::min(DRAW_BLOCK, vocabulary_ - begin_of(at));
        for (int i = 0; i < count; i++) {
            if (weights_[i] == 0.0) continue;
            token = begin_of(at) + i;
            run += weights_[i];
            if (run > target) break;
        }
        return token;
    }

    // The sum of a block's weights that are kept; those that are not become 0.
    double kept(size_t block, const Rule& rule, const Last& last) {
        const int count = weigh(block, rule.temperature), begin = begin_of(block);
        const float* logits = logits_ + begin;
        double sum = 0.0;
        for (int i = 0; i < count; i++) {
            const bool stays = weights_[i] >= rule.min_p && last.keeps(logits[i], begin + i);
            weights_[i] = stays ? weights_[i] : 0.0;
            sum += weights_[i];
        }
        return sum;
    }

    const Kernels& kernels_;
    const int vocabulary_;
    const float* logits_ = nullptr;
    float peak_ = 0.0f;
    std::vector<float> blocks_;   // the largest of each
    std::vector<double> sums_;
    std::vector<float> values_;
    std::vector<Candidate> found_;
    std::vector<double> masses_;  // of those found
    std::vector<int32_t> order_;
    double bins_[BINS + DEEP];
    alignas(64) double weights_[DRAW_BLOCK];
};

// Calls each(row, its number) for all rows, by whoever of the pool is free.
template <typename Each>
void for_rows(Pool& pool, const Kernels& kernels, const Logits& logits, Each each) {
    struct Work {
        const Kernels& kernels;
        const Logits& logits;
        Each& each;
        std::atomic<int> next{0};
        std::atomic<bool> failed{false};
    } work{kernels, logits, each};
    pool.run(
        [](void* context, int) {
            Work& work = *(Work*)context;
            try {
                Row row(work.kernels, work.logits.vocabulary);
                for (int at; (at = work.next.fetch_add(1)) < work.logits.rows;) {
                    row.take(work.logits.data + at * work.logits.stride);
                    work.each(row, at);
                }
            } catch (...) {  // no thread of the pool may throw
                work.failed = true;
            }
        },
        &work);
    if (work.failed) throw std::bad_alloc();
}

}  // namespace

void draw(Pool& pool, const Kernels& kernels, const Logits& logits, const Rule* rules, int64_t* tokens) {
    for_rows(pool, kernels, logits, [=](Row& row, int at) { tokens[at] = row.draw(rules[at]); });
}

void likeliest(Pool& pool, const Kernels& kernels, const Logits& logits, int count, float* values, int64_t* ids) {
    for_rows(pool, kernels, logits, [=](Row& row, int at) {
        row.likeliest(count, values + (size_t)at * count, ids + (size_t)at * count);
    });
}

void log_sums(Pool& pool, const Kernels& kernels, const Logits& logits, double* sums) {
    for_rows(pool, kernels, logits, [=](Row& row, int at) { sums[at] = row.log_sum(); });
}

}  // namespace chairlift
