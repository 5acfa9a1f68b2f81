// One request together with this rank's memory for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "control/request.h"
#include "engine/completion.h"

namespace perseus {

// Shared by the engine and whoever waits. Mostly the latter is the last to let go, on the thread that allocated it.
struct WorkItem {
  Request request;
  std::vector<void*> inputs;           // one for each member of the request: contiguous, row-major
  std::vector<void*> outputs;          // may be the inputs; empty where the core allocates the result
  std::vector<std::int64_t> splits;    // alltoall: rows for each rank
  std::vector<std::int64_t> expected;  // alltoall, where the request is checked: rows from each rank
  Completion completion;
  Status failure;       // of this work alone: all ranks found it out together, and go on
  int open_phases = 0;  // of the timeline, see tracing.h
};

// The same failure, told of this work; a text may begin with its name already.
inline Status failure_of(const WorkItem& work, Status failure) {
  const auto label = work.request.label();
  if (failure.text().starts_with(label)) return failure;
  return {failure.kind(), label + ": " + failure.text()};
}

// The part of a work that one waits for.
inline std::shared_ptr<Completion> completion_of(const std::shared_ptr<WorkItem>& work) {
  return {work, &work->completion};
}

}  // namespace perseus
