// Reads memory on huge pages with some threads, each its own part from one end to the other, and says GB/s of each round.
//
//     c++ -O3 -march=native -pthread reading.cpp -o reading
//     reading CPU,CPU,... MEGABYTES ROUNDS
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

typedef uint64_t Lanes __attribute__((vector_size(64)));

static std::atomic<int> ready, done;
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
    Lanes all = sums[0] + sums[1] + sums[2] + sums[3];
    kept += all[0];
}

static void stay_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    std::vector<int> cpus;
    for (char* word = strtok(argv[1], ","); word; word = strtok(nullptr, ",")) cpus.push_back(atoi(word));
    const int members = (int)cpus.size(), rounds = atoi(argv[3]);
    const size_t page = 2u << 20, bytes = ((size_t)atoi(argv[2]) << 20) / members / page * page * members;
    char* memory = (char*)aligned_alloc(page, bytes);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    std::vector<std::thread> threads;
    for (int member = 0; member < members; member++)
        threads.emplace_back([=] {
            stay_on(cpus[member]);
            for (int round = 1; round <= rounds; round++) {
                while (ready < round) sched_yield();
                read((const Lanes*)(memory + bytes / members * member), bytes / members / sizeof(Lanes));
                done++;
            }
        });
    for (int round = 1; round <= rounds; round++) {
        const double began = now();
        ready = round;
        while (done < round * members) sched_yield();
        printf("%.3f\n", bytes / (now() - began) / 1e9);
    }
    for (auto& thread : threads) thread.join();
    return 0;
}
