// Stamps of the stretches of a step, by the thread that called; nothing is read from the clock while none are wanted.

#pragma once

#include <time.h>

#include "api.h"

namespace arc {

// The order of SECTION_NAMES in binding.py.
enum SectionName : int32_t {
    MLA_ATTN, KV_DOWN, NORM_ROPE, CACHE_WRITE, Q_PROJ, ABSORB, ATTEND, V_UP, O_PROJ, MOE, GATE_SECTION, DISPATCH, SHARED,
    EXPERTS_SECTION, COMBINE, DENSE_MLP
};

class Sections {
public:
    Sections(StepCall &call, bool first) : call_(call), on_(first && call.sections != nullptr) {}

    void layer(int number) { layer_ = number; }

    void open(SectionName name) {
        if (!on_) return;
        call_.sections[call_.section_count] = {name, layer_, now(), 0};
        open_[depth_++] = call_.section_count++;
    }
    void close() {
        if (on_) call_.sections[open_[--depth_]].ended = now();
    }
    void next(SectionName name) {
        close();
        open(name);
    }

private:
    static int64_t now() {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
    }
    StepCall &call_;
    const bool on_;
    int layer_ = -1, depth_ = 0;
    int open_[4] = {};
};

} // namespace arc
