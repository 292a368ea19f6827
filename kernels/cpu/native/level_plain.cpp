// No instruction set in particular: whatever the compiler takes for granted (SSE2 on x86, NEON on ARM).

#include "prelude.h"

#define ARC_LEVEL plain
#define ARC_LANES 4
#define ARC_VECTORS 2
#define ARC_BF16_DOT 0
#define ARC_BF16_ROUND 0
#define ARC_AMX 0

#include "vector.h"

#include "jobs.h"

namespace arc {

const Kernels *plain_kernels() {
    static const Kernels kernels = plain::all_kernels();
    return &kernels;
}

int64_t workspace_bytes(int operation, Type type, const void *call) {
    return type == FLOAT32 ? plain::workspace<float>(operation, call) : plain::workspace<bf16>(operation, call);
}

} // namespace arc
