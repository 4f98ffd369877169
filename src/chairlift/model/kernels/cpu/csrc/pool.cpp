#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace chairlift {

namespace {

constexpr int SPINS = 4000, YIELDS = 64;

// Longer than Python takes between two steps: a processor that fell asleep there wakes up slowly, and not at full speed.
constexpr auto PATIENCE = std::chrono::milliseconds(2);

void breathe() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void stay_on(int cpu) {
#if defined(__linux__)
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // where it is refused the thread runs all the same
#else
    (void)cpu;
#endif
}

}  // namespace

Pool::Pool(std::vector<int> cpus) : cpus_(std::move(cpus)) {
    for (int member = 1; member < size(); member++) threads_.emplace_back([this, member] { serve(member); });
}

Pool::~Pool() {
    is_closing_ = true;
    started_.fetch_add(1, std::memory_order_seq_cst);
    started_.notify_all();
    for (auto& thread : threads_) thread.join();
}

// Who counts up looks next whether anybody sleeps, and must not look before the count is seen: whoever falls asleep just
// then would not be woken. So these are sequentially consistent; the library's notify_all() does not see to it.
void Pool::run(void (*work)(void*, int), void* context) {
    std::lock_guard<std::mutex> turn(turn_);
    work_ = work, context_ = context;
    started_.fetch_add(1, std::memory_order_seq_cst);
    started_.notify_all();
    work(context, 0);
    meet();
}

void Pool::meet() {
    if (size() == 1) return;
    const uint32_t seen = met_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
        arrived_.store(0, std::memory_order_relaxed);
        met_.store(seen + 1, std::memory_order_seq_cst);
        met_.notify_all();
    } else {
        wait_past(met_, seen);
    }
}

void Pool::wait_past(std::atomic<uint32_t>& counter, uint32_t seen) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (counter.load(std::memory_order_acquire) != seen) return;
        breathe();
    }
    const auto since = std::chrono::steady_clock::now();
    do {
        for (int turn = 0; turn < YIELDS; turn++) {
            if (counter.load(std::memory_order_acquire) != seen) return;
            sched_yield();
        }
    } while (std::chrono::steady_clock::now() - since < PATIENCE);
    counter.wait(seen, std::memory_order_acquire);
}

void Pool::serve(int member) {
    stay_on(cpus_[member]);
    for (uint32_t seen = 0;; seen++) {
        wait_past(started_, seen);
        if (is_closing_) return;
        work_(context_, member);
        meet();
    }
}

}  // namespace chairlift
