#include "layouts.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace perseus::mxnet {

void* memory_of(Array array) { return *static_cast<void* const*>(array); }

RowLayout row_layout(void* library) {
  // Both functions take `this` alone.
  const RowLayout found{
      reinterpret_cast<void (*)(const void*)>(dlsym(library, "_ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv")),
      reinterpret_cast<void (*)(void*)>(dlsym(library, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"))};
  if ((found.change == nullptr) != (found.change_now == nullptr))
    throw std::runtime_error("it exports only one of the functions that change oneDNN's layouts to rows");
  return found;
}

EngineCallback callback_at(const void* address) { return *static_cast<const EngineCallback*>(address); }

void require_known_release(int version) {
  const int major = version / 10000;
  if (major != 1 && major != 2) {
    throw std::runtime_error("the engine of MXNet's major version " + std::to_string(major) +
                             " is not known; install MXNet 1.9 or 2.0");
  }
}

}  // namespace perseus::mxnet
