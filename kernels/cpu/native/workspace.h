// Where a call keeps what it computes on the way: one stretch of memory, cut up the same way when its size is asked for.

#pragma once

#include "matrix.h"

namespace arc {

class Cutter {
public:
    explicit Cutter(void *base) : base_(static_cast<char *>(base)) {}
    // `count` values of T, aligned for vectors; null while only the size is asked for.
    template <typename T> T *take(int64_t count) {
        char *place = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        return reinterpret_cast<T *>(place);
    }
    int64_t used() const { return used_; }

private:
    char *base_;
    int64_t used_ = 0;
};

} // namespace arc
