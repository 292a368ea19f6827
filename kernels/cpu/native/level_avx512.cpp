// AVX-512 with its byte, word and shorter-vector parts: Intel servers since 2017, AMD since 2022.

#include "prelude.h"

#if defined(__x86_64__)

#define ARC_LEVEL avx512
#define ARC_LANES 16
#define ARC_VECTORS 4
#define ARC_BF16_DOT 0
#define ARC_BF16_ROUND 0
#define ARC_AMX 0

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "vector.h"

#include "jobs.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace arc {

const Kernels *avx512_kernels() {
    static const Kernels kernels = avx512::all_kernels();
    return &kernels;
}

} // namespace arc

#else

const arc::Kernels *arc::avx512_kernels() { return nullptr; }

#endif
