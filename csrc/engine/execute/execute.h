// Executes one batch: moves data from this rank's memory through the transport into the results.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/reduce.h"
#include "control/request.h"
#include "engine/execute/nan_check.h"
#include "engine/work_item.h"
#include "transport/transport.h"

namespace perseus {

// One request of a batch and this rank's work item for it; the work item is null if this rank has joined.
struct BatchItem {
  const Request* request = nullptr;
  WorkItem* work = nullptr;
};

// Executes a batch. Collective over the transport's group, whose ranks in the job are `world_ranks`. All tasks are of
// one kind (see fuse.h). Blocks; never throws. A failure that all ranks find alike, before data moved or by `check`, is
// in WorkItem::failure. `check` is turned off once it has warned.
Status execute(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
               NanCheck& check);

// Returns true if execute_each() may execute this request beside others. Decides by the request alone, so that all
// ranks decide alike.
bool may_overlap(const Request& request);

// Executes several batches of allreduces without a check. Results are bit-identical to executing one batch after the
// other, but batches overlap if the transport supports that. `observer` counts batches. The work items of a batch are
// not used once the batch is done.
Status execute_each(Transport& transport, const std::vector<int>& world_ranks,
                    std::span<const std::vector<BatchItem>> batches, Observer& observer);

// Returns the reduction of an allreduce for its members of this dtype.
Reduction reduction_of(const Request& request, DType dtype);

// Makes the result of an allgather, alltoall or reduce-scatter. Throws Error.
using MakeResult = std::function<std::shared_ptr<Result>(DType dtype, Shape shape)>;

// Executes an allgather, alltoall or reduce-scatter on host or device tensors. `host` exchanges the sizes, and
// `transport` the data.
Status gather(Transport& host, Transport& transport, const std::vector<int>& world_ranks, WorkItem& work,
              const MakeResult& make);

// Returns memory with this number of zero bytes that lives until the collective is executed, for a rank that has
// joined.
using Zeros = std::function<void*(std::size_t bytes)>;

// Executes an allreduce or adasum on host or device tensors; `check` is for tensors in host memory.
Status allreduce(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
                 const Zeros& zeros, NanCheck& check);

}  // namespace perseus
