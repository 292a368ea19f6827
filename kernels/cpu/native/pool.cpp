#include "pool.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <new>

#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace arc {
namespace {

constexpr int64_t SPIN_NS = 50'000; // about the longest phase of a decode step, and what waking a thread costs

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// Waits for a bounded time; whether it came true.
template <typename Condition> bool spin(Condition &&condition) {
    for (int64_t end = now() + SPIN_NS; now() < end;) {
        for (int i = 0; i < 32; ++i) {
            if (condition()) return true;
            relax();
        }
    }
    return condition();
}

void sleep_while(const void *word, uint32_t value) {
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    (void)word, (void)value;
    std::this_thread::yield();
#endif
}

void wake_all(const void *word) {
#ifdef __linux__
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

// The half of the ticket that holds the phase, which is what a sleeper waits on.
const void *phase_word(const std::atomic<uint64_t> &ticket) {
    auto *halves = reinterpret_cast<const uint32_t *>(&ticket);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? halves + 1 : halves;
}

uint32_t phase_of(uint64_t ticket) { return uint32_t(ticket >> 32); }

} // namespace

Scratch::~Scratch() {
    for (Block &block : blocks_) std::free(block.data);
}

void *Scratch::bytes(size_t size) {
    size = (size + 63) & ~size_t(63);
    while (block_ < blocks_.size() && used_ + size > blocks_[block_].size) {
        ++block_;
        used_ = 0;
    }
    if (block_ == blocks_.size()) {
        size_t room = std::max<size_t>(size, 1 << 20);
        auto *data = static_cast<char *>(std::aligned_alloc(64, room));
        if (data == nullptr) throw std::bad_alloc();
        blocks_.push_back({data, room});
        used_ = 0;
    }
    void *place = blocks_[block_].data + used_;
    used_ += size;
    return place;
}

int Worker::claim(int items) {
    uint64_t ticket = team_.ticket.load(std::memory_order_acquire);
    while (phase_of(ticket) == phase_ && uint32_t(ticket) < uint32_t(items)) {
        if (team_.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
            return int(uint32_t(ticket));
        }
    }
    return -1;
}

void Worker::finish(int items) {
    if (team_.done.fetch_add(1, std::memory_order_acq_rel) + 1 < items) return;
    team_.done.store(0, std::memory_order_relaxed);
    team_.ticket.store(uint64_t(phase_ + 1) << 32, std::memory_order_seq_cst);
    if (team_.sleepers.load(std::memory_order_seq_cst) > 0) wake_all(phase_word(team_.ticket));
}

void Worker::pass() {
    auto over = [&] { return phase_of(team_.ticket.load(std::memory_order_acquire)) != phase_; };
    if (!over() && !spin(over)) {
        team_.sleepers.fetch_add(1, std::memory_order_seq_cst);
        while (!over()) sleep_while(phase_word(team_.ticket), phase_);
        team_.sleepers.fetch_sub(1, std::memory_order_relaxed);
    }
    ++phase_;
}

Pool::~Pool() {
    if (process_ != getpid()) { // a fork's child: the threads are not here, and cannot be joined
        for (std::thread &thread : threads_) thread.detach();
        return;
    }
    stop_.store(true);
    call_number_.fetch_add(1);
    wake_all(&call_number_);
    for (std::thread &thread : threads_) thread.join();
}

void Pool::run(int threads, Job job, void *context) {
    std::unique_lock<std::mutex> lock(call_, std::try_to_lock);
    if (threads > 1 && lock.owns_lock()) return run_team(threads, job, context);
    Team alone;
    Scratch scratch;
    Worker worker(alone, lock.owns_lock() ? scratch_ : scratch, 0, true, 1);
    job(worker, context);
}

void Pool::run_team(int threads, Job job, void *context) {
    if (process_ != getpid()) {
        for (std::thread &thread : threads_) thread.detach();
        threads_.clear();
        process_ = getpid();
        inside_.store(0);
        idlers_.store(0);
    }
    while (int(threads_.size()) < threads - 1) {
        scratches_.push_back(std::make_unique<Scratch>());
        threads_.emplace_back(&Pool::work, this, int(threads_.size()));
    }
    job_ = job;
    context_ = context;
    wanted_ = threads - 1;
    phase_ = phase_of(team_.ticket.load(std::memory_order_relaxed));
    open_.store(true, std::memory_order_seq_cst);
    call_number_.fetch_add(1, std::memory_order_seq_cst);
    if (idlers_.load(std::memory_order_seq_cst) > 0) wake_all(&call_number_);
    Worker worker(team_, scratch_, phase_, true, threads);
    job(worker, context);
    // The context is the caller's: nobody may still look at it when this returns.
    open_.store(false, std::memory_order_seq_cst);
    auto left = [&] { return inside_.load(std::memory_order_seq_cst) == 0; };
    if (spin(left)) return;
    waits_.store(true, std::memory_order_seq_cst);
    while (int inside = inside_.load(std::memory_order_seq_cst)) sleep_while(&inside_, uint32_t(inside));
    waits_.store(false, std::memory_order_relaxed);
}

void Pool::work(int number) {
    for (uint32_t seen = 0;;) {
        auto called = [&] { return call_number_.load(std::memory_order_acquire) != seen; };
        if (!spin(called)) {
            idlers_.fetch_add(1, std::memory_order_seq_cst);
            while (!called()) sleep_while(&call_number_, seen);
            idlers_.fetch_sub(1, std::memory_order_relaxed);
        }
        seen = call_number_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        inside_.fetch_add(1, std::memory_order_seq_cst);
        if (open_.load(std::memory_order_seq_cst) && number < wanted_) {
            Worker worker(team_, *scratches_[size_t(number)], phase_, false, wanted_ + 1);
            job_(worker, context_);
        }
        inside_.fetch_sub(1, std::memory_order_seq_cst);
        if (!open_.load(std::memory_order_seq_cst) && waits_.load(std::memory_order_seq_cst)) wake_all(&inside_);
    }
}

} // namespace arc
