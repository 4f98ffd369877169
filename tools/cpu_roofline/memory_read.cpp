// Reads memory from one end to the other, each thread its own part: as fast as this machine can.
//
//     c++ -O3 -march=native -pthread -shared -fPIC memory_read.cpp -o libreading.so
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

typedef uint64_t Lanes __attribute__((vector_size(64)));

static std::atomic<uint64_t> kept;

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static void read(const Lanes* from, size_t count) {
    Lanes sums[4] = {};
    for (size_t i = 0; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; j++) {
            __builtin_prefetch((const char*)(from + i + j) + 4096);
            sums[j] += from[i + j];
        }
    kept += (sums[0] + sums[1] + sums[2] + sums[3])[0];
}

static void stay_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Seconds of reading `bytes` of memory that begins on a cache line, a thread on each processor.
extern "C" double read_seconds(const char* memory, size_t bytes, const int* cpus, int members) {
    std::atomic<int> ready{0}, done{0};
    std::atomic<bool> started{false};
    const size_t part = bytes / members / sizeof(Lanes);
    std::vector<std::thread> threads;
    for (int member = 0; member < members; member++)
        threads.emplace_back([&, member] {
            stay_on(cpus[member]);
            ready++;
            while (!started) sched_yield();
            read((const Lanes*)memory + part * member, part);
            done++;
        });
    while (ready < members) sched_yield();
    const double began = now();
    started = true;
    while (done < members) sched_yield();
    const double took = now() - began;
    for (auto& thread : threads) thread.join();
    return took;
}
