// One request together with this rank's memory for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "control/request.h"
#include "engine/completion.h"

namespace perseus {

struct Work {
  Request request;
  std::vector<void*> inputs;         // one for each member of the request: contiguous, row-major
  std::vector<void*> outputs;        // may be the inputs; empty where the core allocates the result
  std::vector<std::int64_t> splits;  // alltoall: rows for each rank
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
  Status failure;       // of this work alone: all ranks found it out together, and go on
  int open_phases = 0;  // of the timeline, see tracing.h
};

}  // namespace perseus
