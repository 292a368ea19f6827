// What the level files include before they choose an instruction set.
//
// Inline functions of the standard library must be compiled for the plain machine: the linker keeps one copy of each for
// the whole library, and a copy with wider instructions would stop an older processor. So nothing of the standard library
// is included after the choice, nor anything of ours that is not in the level's own namespace.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "api.h"
#include "kernels.h"
#include "matrix.h"
#include "pool.h"
#include "sections.h"
#include "workspace.h"

namespace arc {

struct bf16 {
    uint16_t bits;
};

} // namespace arc
