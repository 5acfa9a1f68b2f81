// One request together with this rank's memory for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "control/request.h"
#include "engine/completion.h"

namespace perseus {

// Owned by the engine and by the caller. Usually the caller releases it last, on the thread that allocated it.
struct WorkItem {
  Request request;
  std::vector<void*> inputs;   // one for each member of the request: contiguous, row-major
  std::vector<void*> outputs;  // may be the inputs; empty if the core allocates the result
  // The bytes of each output of an allgather or reduce-scatter. Such outputs are on a device.
  std::vector<std::int64_t> output_bytes;
  std::vector<std::int64_t> splits;    // alltoall: rows for each rank
  std::vector<std::int64_t> expected;  // alltoall, if the request is checked: rows from each rank
  Completion completion;
  Status failure;       // of this work item alone: all ranks found it alike, and continue
  int open_phases = 0;  // of the timeline, see tracing.h
};

// Returns the failure with the label of this work item in front, unless its text begins with the label already.
inline Status failure_of(const WorkItem& work, Status failure) {
  const auto label = work.request.label();
  if (failure.text().starts_with(label)) return failure;
  return {failure.kind(), label + ": " + failure.text()};
}

// Returns the completion; it keeps the whole work item alive.
inline std::shared_ptr<Completion> completion_of(const std::shared_ptr<WorkItem>& work) {
  return {work, &work->completion};
}

}  // namespace perseus
