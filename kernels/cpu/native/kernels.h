// What a level offers: for each operation and type of activation, the program that a team of threads runs.

#pragma once

#include "api.h"
#include "pool.h"

namespace arc {

struct Kernels {
    Job jobs[2][OPERATIONS]; // by Type, then Operation
};

// How many bytes of workspace a call needs, the same on every level.
int64_t workspace_bytes(int operation, Type type, const void *call);

// One a level file; null where the level is not built for this kind of processor.
const Kernels *plain_kernels();
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();
const Kernels *avx512_bf16_kernels();
const Kernels *amx_kernels();

} // namespace arc
