#include "engine.h"

#include <stdexcept>
#include <string>

namespace perseus::mxnet {

EngineCallback callback_at(const void* address) { return *static_cast<const EngineCallback*>(address); }

void require_known_release(int version) {
  const int major = version / 10000;
  if (major != 1 && major != 2) {
    throw std::runtime_error("the engine of MXNet's major version " + std::to_string(major) +
                             " is not known; install MXNet 1.9 or 2.0");
  }
}

}  // namespace perseus::mxnet
