#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>

namespace chairlift {
namespace {

constexpr int BINS = 2048;
// Accumulators of the last bin, which has most logits: repeated additions to one address are slow.
constexpr int LAST_BIN_SLOTS = 8;
// The last bin begins at weight e**-50. Such weights of a whole vocabulary are less than the float64 precision of the
// sum.
constexpr double MAX_EXPONENT = 50.0;

struct Candidate {
    float value;
    int32_t id;
    bool operator<(const Candidate& other) const {  // descending probability, then ascending id
        return value > other.value || (value == other.value && id < other.id);
    }
};

// The last token, in the order of candidates, that truncation keeps.
struct Cutoff {
    float value = -INFINITY;
    int32_t id = INT_MAX;
    bool keeps(float other, int32_t other_id) const { return other > value || (other == value && other_id <= id); }
};

// Samples one row at a time. The memory of a row is reused for the next one.
class RowSampler {
public:
    RowSampler(const Kernels& kernels, int vocabulary) : kernels_(kernels), vocabulary_(vocabulary) {
        block_max_.resize((vocabulary + LOGITS_BLOCK - 1) / LOGITS_BLOCK);
        block_sums_.resize(block_max_.size());
    }

    void load(const float* logits) {
        logits_ = logits;
        kernels_.block_max(logits, vocabulary_, block_max_.data());
        max_logit_ = *std::max_element(block_max_.begin(), block_max_.end());
    }

    int64_t sample(const TruncationParams& params) {
        if (params.top_k > 0 && params.top_k < vocabulary_) {
            collect_top_k((int)params.top_k);
            return sample_candidates(params);
        }
        return sample_all(params, params.top_p < 1 ? top_p_cutoff(params) : Cutoff());
    }

    void top_k(int count, float* values, int64_t* ids) {
        collect_top_k(count);
        std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end());
        for (int i = 0; i < count; i++) values[i] = candidates_[i].value, ids[i] = candidates_[i].id;
    }

    double logsumexp() {
        double total = 0.0;
        for (size_t block = 0; block < block_max_.size(); block++) {
            const int count = compute_weights(block, 1.0);
            double sum = 0.0;
            for (int i = 0; i < count; i++) sum += weights_[i];
            total += sum;
        }
        return std::log(total);
    }

private:
    int first_id_of(size_t block) const { return (int)block * LOGITS_BLOCK; }

    int compute_weights(size_t block, double temperature) {
        const int count = std::min(LOGITS_BLOCK, vocabulary_ - first_id_of(block));
        kernels_.exp_weights(logits_ + first_id_of(block), count, max_logit_, temperature, weights_);
        return count;
    }

    // Collects the tokens whose logit is at least the k-th largest, by ascending id.
    //
    // The k largest block maxima are k logits, so the smallest of them is at most the k-th largest logit.
    void collect_top_k(int k) {
        float bound = -INFINITY;
        if ((size_t)k <= block_max_.size()) {
            values_.assign(block_max_.begin(), block_max_.end());
            bound = kth_largest(k);
        }
        candidates_.clear();
        for (size_t block = 0; block < block_max_.size(); block++) {
            if (block_max_[block] < bound) continue;
            const int end = std::min(vocabulary_, first_id_of(block) + LOGITS_BLOCK);
            for (int id = first_id_of(block); id < end; id++)
                if (logits_[id] >= bound) candidates_.push_back({logits_[id], id});
        }
        values_.clear();
        for (const Candidate& candidate : candidates_) values_.push_back(candidate.value);
        const float threshold = kth_largest(k);
        candidates_.erase(
            std::remove_if(
                candidates_.begin(), candidates_.end(),
                [threshold](const Candidate& candidate) { return candidate.value < threshold; }),
            candidates_.end());
    }

    float kth_largest(int k) {
        std::nth_element(
            values_.begin(), values_.begin() + (k - 1), values_.end(), [](float a, float b) { return a > b; });
        return values_[k - 1];
    }

    // Samples a token from the collected candidates.
    int64_t sample_candidates(const TruncationParams& params) {
        const size_t count = candidates_.size();
        values_.clear();
        for (const Candidate& candidate : candidates_) values_.push_back(candidate.value);
        candidate_weights_.resize((count + LOGITS_BLOCK - 1) / LOGITS_BLOCK * LOGITS_BLOCK);
        for (size_t begin = 0; begin < count; begin += LOGITS_BLOCK) {
            const int block_count = (int)std::min<size_t>(LOGITS_BLOCK, count - begin);
            kernels_.exp_weights(
                values_.data() + begin, block_count, max_logit_, params.temperature, candidate_weights_.data() + begin);
        }
        if (params.top_p < 1) apply_top_p(params.top_p, count);
        double total = 0.0;
        for (size_t i = 0; i < count; i++) total += candidate_weights_[i] < params.min_p ? 0.0 : candidate_weights_[i];
        const double target = total * params.uniform;
        double cumulative = 0.0;
        int64_t token = 0;
        for (size_t i = 0; i < count; i++) {
            // Candidates lie by ascending id, so the running sum has the order of the whole vocabulary.
            if (candidate_weights_[i] < params.min_p || candidate_weights_[i] == 0.0) continue;
            token = candidates_[i].id;
            cumulative += candidate_weights_[i];
            if (cumulative > target) break;
        }
        return token;
    }

    // Zeroes the weights of the candidates that top_p truncates: those whose predecessors, in descending order, already
    // sum to top_p of the total.
    void apply_top_p(double top_p, size_t count) {
        order_.resize(count);
        for (size_t i = 0; i < count; i++) order_[i] = (int32_t)i;
        std::sort(
            order_.begin(), order_.end(), [this](int32_t a, int32_t b) { return candidates_[a] < candidates_[b]; });
        double total = 0.0;
        for (int32_t i : order_) total += candidate_weights_[i];
        double cumulative = 0.0;
        for (int32_t i : order_) {
            const double weight = candidate_weights_[i];
            // Nothing comes before the first candidate, so one always stays.
            if (!(cumulative < top_p * total)) candidate_weights_[i] = 0.0;
            cumulative += weight;
        }
    }

    int bin_of(float value, double scale) const {
        const double depth = ((double)max_logit_ - value) * scale, last_bin = BINS - 1;
        return (int)(depth < last_bin ? depth : last_bin);
    }

    // Returns the last token, in descending order, whose predecessors sum to less than top_p of the total weight.
    //
    // Weights are summed in bins by the distance of a logit from the largest one. Only the bin in which the sum reaches
    // top_p is sorted.
    Cutoff top_p_cutoff(const TruncationParams& params) {
        const double scale = (BINS - 1) / (MAX_EXPONENT * params.temperature);
        std::fill(bins_, bins_ + BINS + LAST_BIN_SLOTS, 0.0);
        for (size_t block = 0; block < block_max_.size(); block++) {
            const int count = compute_weights(block, params.temperature);
            const float* logits = logits_ + first_id_of(block);
            int bins[LOGITS_BLOCK];  // computed in a loop of their own, without branches that would be mispredicted
            for (int i = 0; i < count; i++) {
                const int bin = bin_of(logits[i], scale);
                bins[i] = bin + (bin == BINS - 1 ? i % LAST_BIN_SLOTS : 0);
            }
            for (int i = 0; i < count; i++) bins_[bins[i]] += weights_[i];
        }
        for (int i = BINS; i < BINS + LAST_BIN_SLOTS; i++) bins_[BINS - 1] += bins_[i];
        double total = 0.0;
        for (int i = 0; i < BINS; i++) total += bins_[i];
        const double limit = params.top_p * total;
        double cumulative = 0.0;
        int bin = 0;
        while (bin < BINS - 1 && cumulative + bins_[bin] < limit) cumulative += bins_[bin++];
        candidates_.clear();
        for (size_t block = 0; block < block_max_.size(); block++) {
            // No logit of this block is large enough for the bin.
            if (bin_of(block_max_[block], scale) > bin) continue;
            const int end = std::min(vocabulary_, first_id_of(block) + LOGITS_BLOCK);
            for (int id = first_id_of(block); id < end; id++)
                if (bin_of(logits_[id], scale) == bin) candidates_.push_back({logits_[id], id});
        }
        std::sort(candidates_.begin(), candidates_.end());
        Cutoff cutoff;
        for (const Candidate& candidate : candidates_) {
            if (!(cumulative < limit)) break;
            cutoff.value = candidate.value, cutoff.id = candidate.id;
            double weight[LOGITS_BLOCK];
            kernels_.exp_weights(&candidate.value, 1, max_logit_, params.temperature, weight);
            cumulative += weight[0];
        }
        return cutoff;
    }

    // Samples a token from those that `cutoff` and min_p keep.
    int64_t sample_all(const TruncationParams& params, const Cutoff& cutoff) {
        double total = 0.0;
        for (size_t block = 0; block < block_max_.size(); block++) {
            block_sums_[block] = block_max_[block] < cutoff.value ? 0.0 : sum_kept(block, params, cutoff);
            total += block_sums_[block];
        }
        const double target = total * params.uniform;
        double cumulative = 0.0;
        size_t block = 0, last_nonzero = 0;
        for (; block < block_max_.size(); block++) {
            if (block_sums_[block] > 0.0) last_nonzero = block;
            if (cumulative + block_sums_[block] > target) break;
            cumulative += block_sums_[block];
        }
        if (block == block_max_.size()) cumulative -= block_sums_[last_nonzero];  // rounding: uniform is just below 1
        // The weights of the sample's block are computed again: keeping those of all blocks would be 8 bytes a token.
        sum_kept(last_nonzero, params, cutoff);
        int64_t token = first_id_of(last_nonzero);
        const int count = std::min(LOGITS_BLOCK, vocabulary_ - first_id_of(last_nonzero));
        for (int i = 0; i < count; i++) {
            if (weights_[i] == 0.0) continue;
            token = first_id_of(last_nonzero) + i;
            cumulative += weights_[i];
            if (cumulative > target) break;
        }
        return token;
    }

    // Computes a block's weights and zeroes those that truncation drops. Returns their sum.
    double sum_kept(size_t block, const TruncationParams& params, const Cutoff& cutoff) {
        const int count = compute_weights(block, params.temperature), begin = first_id_of(block);
        const float* logits = logits_ + begin;
        double sum = 0.0;
        for (int i = 0; i < count; i++) {
            const bool is_kept = weights_[i] >= params.min_p && cutoff.keeps(logits[i], begin + i);
            weights_[i] = is_kept ? weights_[i] : 0.0;
            sum += weights_[i];
        }
        return sum;
    }

    const Kernels& kernels_;
    const int vocabulary_;
    const float* logits_ = nullptr;
    float max_logit_ = 0.0f;
    std::vector<float> block_max_;    // largest logit of each block
    std::vector<double> block_sums_;  // sum of the kept weights of each block
    std::vector<float> values_;
    std::vector<Candidate> candidates_;
    std::vector<double> candidate_weights_;
    std::vector<int32_t> order_;
    double bins_[BINS + LAST_BIN_SLOTS];
    alignas(64) double weights_[LOGITS_BLOCK];
};

// Calls function(sampler, row) for all rows. The threads of the pool take rows as they become free. Throws
// std::bad_alloc.
template <typename Function>
void for_each_row(ThreadPool& pool, const Kernels& kernels, const Logits& logits, Function function) {
    struct Job {
        const Kernels& kernels;
        const Logits& logits;
        Function& function;
        std::atomic<int> next{0};
        std::atomic<bool> failed{false};
    } job{kernels, logits, function};
    pool.run(
        [](void* context, int) {
            Job& job = *(Job*)context;
            try {
                RowSampler sampler(job.kernels, job.logits.vocabulary);
                for (int row; (row = job.next.fetch_add(1)) < job.logits.rows;) {
                    sampler.load(job.logits.data + row * job.logits.stride);
                    job.function(sampler, row);
                }
            } catch (...) {  // a thread of the pool must not throw
                job.failed = true;
            }
        },
        &job);
    if (job.failed) throw std::bad_alloc();
}

}  // namespace

void sample(
    ThreadPool& pool, const Kernels& kernels, const Logits& logits, const TruncationParams* params, int64_t* tokens) {
    for_each_row(pool, kernels, logits, [=](RowSampler& sampler, int row) {
        tokens[row] = sampler.sample(params[row]);
    });
}

void top_k(ThreadPool& pool, const Kernels& kernels, const Logits& logits, int count, float* values, int64_t* ids) {
    for_each_row(pool, kernels, logits, [=](RowSampler& sampler, int row) {
        sampler.top_k(count, values + (size_t)row * count, ids + (size_t)row * count);
    });
}

void logsumexp(ThreadPool& pool, const Kernels& kernels, const Logits& logits, double* sums) {
    for_each_row(pool, kernels, logits, [=](RowSampler& sampler, int row) { sums[row] = sampler.logsumexp(); });
}

}  // namespace chairlift
