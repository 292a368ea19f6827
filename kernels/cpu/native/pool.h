// Threads that run one program together, phase by phase, and wait for work instead of for each other.
//
// A job is a function that every thread of the team runs from start to end. Its work is in `Worker::each`: phases of
// independent items, which are taken one by one by whoever is free. A phase is over when its last item is done, not
// when every thread has come by: a thread that the system has put aside, or that wakes late, holds up nobody, and skips
// what is over when it comes. So a busy core costs what it takes away, and no more.
//
// Nobody spins past SPIN_NS: then a waiting thread sleeps in the kernel until the phase ends.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace arc {

// Memory of one thread, for the time of one item of work. It grows to what was asked for, and stays.
class Scratch {
public:
    ~Scratch();
    // Room for `count` values of T, aligned for vectors; undefined contents. Valid until `clear`.
    template <typename T> T *take(size_t count) { return static_cast<T *>(bytes(count * sizeof(T))); }
    void clear() { block_ = used_ = 0; }

    // Gives back, at its end, what was taken since.
    class Hold {
    public:
        explicit Hold(Scratch &scratch) : scratch_(scratch), block_(scratch.block_), used_(scratch.used_) {}
        ~Hold() { scratch_.block_ = block_, scratch_.used_ = used_; }
        Hold(const Hold &) = delete;

    private:
        Scratch &scratch_;
        size_t block_, used_;
    };

private:
    void *bytes(size_t size);
    struct Block {
        char *data;
        size_t size;
    };
    std::vector<Block> blocks_;
    size_t block_ = 0, used_ = 0;
};

class Team;

// One thread's place in a job. All threads of a team call `each` in the same order with the same number of items, which
// therefore may depend on what an earlier phase wrote only where nothing later in the job writes it again.
class Worker {
public:
    Worker(Team &team, Scratch &scratch, uint32_t phase, bool first, int threads)
        : scratch(scratch), first(first), threads_(threads), team_(team), phase_(phase) {}

    // Runs body(i) once for each i in [0, items), by any thread; returns when all of them are done.
    template <typename Body> void each(int items, Body &&body) {
        if (items <= 0) return;
        for (int item; (item = claim(items)) >= 0;) {
            scratch.clear();
            body(item);
            finish(items);
        }
        pass();
    }

    // The item that this thread takes after `item` if all are equally fast; it may be past the last one.
    int next(int item) const { return item + threads_; }

    Scratch &scratch;
    const bool first; // the thread that called

private:
    const int threads_;
    int claim(int items);
    void finish(int items);
    void pass();
    Team &team_;
    uint32_t phase_;
};

// What a team shares. The phase and the next item are one word, so that an item is never claimed of a phase that is over.
class Team {
public:
    std::atomic<uint64_t> ticket{0}; // phase << 32 | next item
    std::atomic<int> done{0};
    std::atomic<int> sleepers{0};
};

using Job = void (*)(Worker &, void *);

class Pool {
public:
    Pool() = default;
    ~Pool();
    Pool(const Pool &) = delete;

    // Runs the job on `threads` threads, the caller among them, and returns when it is done. A call that comes while
    // another one has the threads runs on its caller's thread alone.
    void run(int threads, Job job, void *context);

private:
    void work(int number);
    void run_team(int threads, Job job, void *context);

    std::mutex call_; // held by the call that has the threads
    std::vector<std::thread> threads_;
    std::vector<std::unique_ptr<Scratch>> scratches_;
    Scratch scratch_; // the caller's, of the call that holds `call_`
    Team team_;
    int process_ = 0; // whose threads they are: a fork's child has none

    // Of the job that is open. Written while none is, and no thread is inside one.
    Job job_ = nullptr;
    void *context_ = nullptr;
    int wanted_ = 0; // threads beside the caller
    uint32_t phase_ = 0;

    std::atomic<uint32_t> call_number_{0};
    std::atomic<bool> open_{false};
    std::atomic<bool> stop_{false};
    std::atomic<int> inside_{0}; // threads that read the job's fields
    std::atomic<bool> waits_{false}; // the caller sleeps until they are out
    std::atomic<int> idlers_{0};
};

} // namespace arc
