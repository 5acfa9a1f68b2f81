// The verbs that add, over one communicator. All throw Error.
#pragma once

#include "transport/xccl/moves.h"

namespace perseus::xccl {

void allreduce(const Way& way, const Reduction& reduction, Pieces in, Pieces out);
void reduce_scatter(const Way& way, const Reduction& reduction, const void* in, void* out, Counts counts);

// See XcclTransport::supports.
Status supports(const Library& library, const Device& device, const Reduction& reduction);

}  // namespace perseus::xccl
