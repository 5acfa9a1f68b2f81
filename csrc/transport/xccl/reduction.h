// Implements the verbs that reduce, over one communicator. All functions throw Error.
#pragma once

#include "transport/xccl/data_movement.h"

namespace perseus::xccl {

void allreduce(const Context& context, const Reduction& reduction, Pieces in, Pieces out);
void reduce_scatter(const Context& context, const Reduction& reduction, const void* in, void* out, Counts counts);

// See XcclTransport::supports().
Status supports(const Library& library, const Device& device, const Reduction& reduction);

}  // namespace perseus::xccl
