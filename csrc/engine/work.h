// One request together with this rank's memory for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensor_view.h"
#include "control/request.h"
#include "engine/completion.h"

namespace perseus {

struct Work {
  Request request;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;   // empty where the core allocates the result
  std::vector<std::int64_t> splits;  // alltoall: rows for each rank
  std::shared_ptr<Completion> completion = std::make_shared<Completion>();
  int open_phases = 0;  // of the timeline, see tracing.h
};

}  // namespace perseus
