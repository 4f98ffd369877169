#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace chairlift {

namespace {

constexpr int SPINS = 4000, YIELDS = 64;

// Longer than Python takes between two steps. A processor that slept meanwhile wakes up slowly and below its full
// speed.
constexpr auto MAX_YIELD_TIME = std::chrono::milliseconds(2);

void cpu_pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

void pin_thread(int cpu) {
#if defined(__linux__)
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // on failure the thread runs unpinned
#else
    (void)cpu;
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::vector<int> cpus)
    : cpus_(std::move(cpus)), size_(max_size()), workers_(start_workers(max_size())) {
    workers_->set_state(WORKING);
}

ThreadPool::~ThreadPool() { end_workers(); }

void ThreadPool::renew_threads(int size) {
    std::lock_guard<std::mutex> lock(run_mutex_);
    auto workers = start_workers(size);
    end_workers();
    size_.store(size, std::memory_order_relaxed);
    run_generation_.store(0, std::memory_order_seq_cst);
    workers_ = std::move(workers);
    workers_->set_state(WORKING);
}

std::unique_ptr<ThreadPool::Workers> ThreadPool::start_workers(int size) {
    auto workers = std::make_unique<Workers>();
    for (int thread_index = 1; thread_index < size; thread_index++)
        workers->threads.emplace_back(
            [this, &state = workers->state, thread_index] { worker_loop(state, thread_index); });
    return workers;
}

void ThreadPool::end_workers() {
    workers_->state = ENDING;
    run_generation_.fetch_add(1, std::memory_order_seq_cst);
    run_generation_.notify_all();
    workers_.reset();
}

void ThreadPool::Workers::set_state(State next) {
    state.store(next, std::memory_order_seq_cst);
    state.notify_all();
}

// Threads that wait for their begin end at once.
ThreadPool::Workers::~Workers() {
    set_state(ENDING);
    for (auto& thread : threads) thread.join();
}

// notify_all() checks for sleeping threads. It must not check before its thread's increment is visible: a thread that
// falls asleep in between would not be woken. The standard library's notify_all() does not order the two, so the
// increments and stores before it are sequentially consistent.
void ThreadPool::run(void (*task)(void*, int), void* context) {
    std::lock_guard<std::mutex> lock(run_mutex_);
    // The other threads see it once they have read the increment below.
    task_ = task, context_ = context;
    run_generation_.fetch_add(1, std::memory_order_seq_cst);
    run_generation_.notify_all();
    task(context, 0);
    barrier();
}

void ThreadPool::barrier() {
    if (size() == 1) return;
    const uint32_t generation = barrier_generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
        // Reset before the generation changes: the first thread that leaves may come to the next barrier at once.
        arrived_.store(0, std::memory_order_relaxed);
        barrier_generation_.store(generation + 1, std::memory_order_seq_cst);
        barrier_generation_.notify_all();
    } else {
        wait_for_change(barrier_generation_, generation);
    }
}

void ThreadPool::wait_for_change(std::atomic<uint32_t>& counter, uint32_t generation) {
    for (int spin = 0; spin < SPINS; spin++) {
        if (counter.load(std::memory_order_acquire) != generation) return;
        cpu_pause();
    }
    const auto since = std::chrono::steady_clock::now();
    do {
        for (int yield = 0; yield < YIELDS; yield++) {
            if (counter.load(std::memory_order_acquire) != generation) return;
            sched_yield();
        }
    } while (std::chrono::steady_clock::now() - since < MAX_YIELD_TIME);
    counter.wait(generation, std::memory_order_acquire);
}

void ThreadPool::worker_loop(std::atomic<State>& state, int thread_index) {
    pin_thread(cpus_[thread_index]);
    state.wait(WAITING, std::memory_order_acquire);
    // Each thread counts the runs itself: it takes part in every one, so it can miss none.
    for (uint32_t generation = 0; state.load(std::memory_order_acquire) != ENDING; generation++) {
        wait_for_change(run_generation_, generation);
        if (state.load(std::memory_order_acquire) == ENDING) return;
        task_(context_, thread_index);
        barrier();
    }
}

}  // namespace chairlift
