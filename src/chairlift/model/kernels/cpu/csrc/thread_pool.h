// ThreadPool: threads, one per processor, that compute a step together. The native kernels have one pool per process.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace chairlift {

// The thread that calls run() takes part as thread 0, so a pool of n threads starts n - 1. A waiting thread spins for
// some microseconds, then yields its processor for two milliseconds, then sleeps. Concurrent calls of run() wait for
// each other.
class ThreadPool {
public:
    // cpus: the processor of each thread, -1: not pinned. The first entry is the caller's, which is not pinned here.
    explicit ThreadPool(std::vector<int> cpus);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // The number of threads now. It may change before a call of run(), but not within one.
    int size() const { return size_.load(std::memory_order_relaxed); }
    int max_size() const { return (int)cpus_.size(); }

    // Replaces the threads by new ones, `size` with the caller, 1 to max_size(). They have the priority of the calling
    // thread. Throws if they cannot be started; the old ones stay then.
    void renew_threads(int size);

    // Calls task(context, thread_index) once in every thread. Returns after the last one.
    void run(void (*task)(void* context, int thread_index), void* context);

    // Called within a task: waits until every thread has called it.
    void barrier();

private:
    enum State { WAITING, WORKING, ENDING };

    // Threads that were started together; the destructor joins them.
    struct Workers {
        ~Workers();
        void set_state(State next);

        std::vector<std::thread> threads;
        std::atomic<State> state{WAITING};
    };

    std::unique_ptr<Workers> start_workers(int size);
    void end_workers();
    void worker_loop(std::atomic<State>& state, int thread_index);
    void wait_for_change(std::atomic<uint32_t>& counter, uint32_t generation);

    std::vector<int> cpus_;
    std::atomic<int> size_;
    std::unique_ptr<Workers> workers_;
    std::mutex run_mutex_;
    void (*task_)(void*, int) = nullptr;
    void* context_ = nullptr;
    alignas(64) std::atomic<uint32_t> run_generation_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> barrier_generation_{0};
};

}  // namespace chairlift
