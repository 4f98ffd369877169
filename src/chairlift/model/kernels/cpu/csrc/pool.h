// A team of threads, one a processor, that computes steps together: the one pool of the native path.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace chairlift {

// The thread that calls `run` is a member itself, so a pool of n has n - 1 threads of its own. They wait for work
// spinning for some microseconds, then letting others have the processor for two milliseconds, then asleep. Whoever calls `run` while another does waits its turn.
class Pool {
public:
    // cpus: where each member stays, -1 for anywhere; the first is the caller's.
    explicit Pool(std::vector<int> cpus);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return (int)cpus_.size(); }

    // Calls work(context, member) once in every member; returns when all have.
    void run(void (*work)(void* context, int member), void* context);

    // Within `work`: waits until every member has come this far.
    void meet();

private:
    void serve(int member);
    void wait_past(std::atomic<uint32_t>& counter, uint32_t seen);

    std::vector<int> cpus_;
    std::vector<std::thread> threads_;
    std::mutex turn_;
    void (*work_)(void*, int) = nullptr;
    void* context_ = nullptr;
    bool is_closing_ = false;
    alignas(64) std::atomic<uint32_t> started_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> met_{0};
};

}  // namespace chairlift
