// Jobs of many phases on teams of several sizes, and two callers at once. Built with the thread sanitizer by
// test_pool.py: what a phase writes without atomics is read by the next one, so a phase that began too early is a race.

#include "pool.h"

#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int PHASES = 40, ITEMS = 23;

struct Context {
    std::vector<int> values = std::vector<int>(ITEMS, 0);
    int extra = 0; // items of the last phases, known only to those who have seen the phase before
};

void job(arc::Worker &worker, void *context) {
    auto &shared = *static_cast<Context *>(context);
    for (int phase = 0; phase < PHASES; ++phase) {
        worker.each(ITEMS, [&](int item) {
            int *scratch = worker.scratch.take<int>(1000);
            scratch[999] = item;
            ++shared.values[size_t((scratch[999] + phase) % ITEMS)]; // another thread's item of the phase before
        });
    }
    worker.each(1, [&](int) { shared.extra = 5; });
    int extra = shared.extra;
    worker.each(extra, [&](int item) { ++shared.values[size_t(item)]; });
}

bool right(const Context &context) {
    for (int item = 0; item < ITEMS; ++item) {
        if (context.values[size_t(item)] != PHASES + (item < 5)) return false;
    }
    return true;
}

} // namespace

int main() {
    arc::Pool pool;
    auto jobs = [&](int threads, int count) {
        for (int i = 0; i < count; ++i) {
            Context context; // dies with the call: a thread that looked at it afterwards would be caught
            pool.run(threads, job, &context);
            if (!right(context)) {
                std::printf("wrong with %d threads\n", threads);
                std::exit(1);
            }
        }
    };
    for (int threads : {1, 2, 3, 7, 2}) jobs(threads, 60);
    std::thread other([&] { jobs(3, 60); });
    jobs(2, 60);
    other.join();
    std::puts("right");
}
