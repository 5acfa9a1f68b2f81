// Moves the data of one batch: from this rank's memory through the transport to where the results belong.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/reduce.h"
#include "control/request.h"
#include "engine/nan_check.h"
#include "engine/work_item.h"
#include "transport/transport.h"

namespace perseus {

// One request of a batch and this rank's work for it; none where this rank has joined.
struct BatchItem {
  const Request* request = nullptr;
  WorkItem* work = nullptr;
};

// Collective over the transport's group, whose ranks in the job are `world_ranks`. All tasks are of one kind (see
// fuse.h). Blocks; never throws. What goes wrong on all ranks alike, before data moved or by what `check` finds, is in
// WorkItem::failure. `check` is turned off once it has warned.
Status execute(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
               NanCheck& check);

// Whether execute_each() may be given it, with others. By the request alone, so that all ranks decide alike.
bool may_overlap(const Request& request);

// The same for several batches of allreduces without a check, one after the other to the bit, some of which are under
// way at the same time where the transport does that. `observer` counts batches; a batch's works are not used once it
// is done.
Status execute_each(Transport& transport, const std::vector<int>& world_ranks,
                    std::span<const std::vector<BatchItem>> batches, Observer& observer);

// What an allreduce does with its members of this type.
Reduction reduction_of(const Request& request, DType dtype);

// Makes the result of a gather, alltoall or reduce-scatter. Throws Error.
using MakeResult = std::function<std::shared_ptr<Result>(DType dtype, Shape shape)>;

// The part of execute() for these, wherever the tensors are. Sizes are exchanged by `host`, data goes by `transport`.
Status gather(Transport& host, Transport& transport, const std::vector<int>& world_ranks, WorkItem& work,
              const MakeResult& make);

// Memory that holds so many zero bytes, until the collective is carried out: of a rank that has joined.
using Zeros = std::function<void*(std::size_t bytes)>;

// The part of execute() for allreduce and adasum, wherever the tensors are; `check` is for tensors in host memory.
Status allreduce(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
                 const Zeros& zeros, NanCheck& check);

}  // namespace perseus
