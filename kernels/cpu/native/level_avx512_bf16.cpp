// AVX-512 with the bf16 dot product: AMD since 2022 (Zen 4), Intel Cooper Lake and Sapphire Rapids.

#include "prelude.h"

#if defined(__x86_64__)

#define ARC_LEVEL avx512_bf16
#define ARC_LANES 16
#define ARC_VECTORS 4
#define ARC_BF16_DOT 1
#define ARC_BF16_ROUND 1
#define ARC_AMX 0

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#endif

#include "vector.h"

#include "jobs.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace arc {

const Kernels *avx512_bf16_kernels() {
    static const Kernels kernels = avx512_bf16::all_kernels();
    return &kernels;
}

} // namespace arc

#else

const arc::Kernels *arc::avx512_bf16_kernels() { return nullptr; }

#endif
