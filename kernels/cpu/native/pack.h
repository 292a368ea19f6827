// Weights from the checkpoint's layout to panels. Runs once a weight, on plain instructions.

#pragma once

#include "api.h"
#include "pool.h"

namespace arc {

// One item a panel. `type` is that of the weight given.
void pack(Worker &worker, const PackCall &call, Type type);

} // namespace arc
