// AVX2 with FMA: x86 since about 2013.

#include "prelude.h"

#if defined(__x86_64__)

#define ARC_LEVEL avx2
#define ARC_LANES 8
#define ARC_VECTORS 2
#define ARC_BF16_DOT 0
#define ARC_BF16_ROUND 0
#define ARC_AMX 0

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "vector.h"

#include "jobs.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace arc {

const Kernels *avx2_kernels() {
    static const Kernels kernels = avx2::all_kernels();
    return &kernels;
}

} // namespace arc

#else

const arc::Kernels *arc::avx2_kernels() { return nullptr; }

#endif
