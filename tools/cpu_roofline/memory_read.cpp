// Reads a piece of memory once, each thread a contiguous part, to measure the memory bandwidth.
//
//     c++ -O3 -march=native -pthread -shared -fPIC memory_read.cpp -o libmemory_read.so
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

typedef uint64_t Lanes __attribute__((vector_size(64)));

// Keeps the compiler from removing the reads.
static std::atomic<uint64_t> checksum;

static double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

static void read(const Lanes* lanes, size_t count) {
    Lanes sums[4] = {};
    for (size_t i = 0; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; j++) {
            __builtin_prefetch((const char*)(lanes + i + j) + 4096);
            sums[j] += lanes[i + j];
        }
    checksum += (sums[0] + sums[1] + sums[2] + sums[3])[0];
}

static void pin_thread(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Returns the seconds of reading `bytes` of memory that begins on a cache line, with one thread on each CPU.
extern "C" double read_seconds(const char* memory, size_t bytes, const int* cpus, int num_threads) {
    std::atomic<int> ready{0}, done{0};
    std::atomic<bool> started{false};
    const size_t part = bytes / num_threads / sizeof(Lanes);
    std::vector<std::thread> threads;
    for (int index = 0; index < num_threads; index++)
        threads.emplace_back([&, index] {
            pin_thread(cpus[index]);
            ready++;
            while (!started) sched_yield();
            read((const Lanes*)memory + part * index, part);
            done++;
        });
    while (ready < num_threads) sched_yield();
    const double started_at = now();
    started = true;
    while (done < num_threads) sched_yield();
    const double seconds = now() - started_at;
    for (auto& thread : threads) thread.join();
    return seconds;
}
