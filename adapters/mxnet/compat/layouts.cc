#include "layouts.h"

#include <dlfcn.h>

#include <stdexcept>

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

}  // namespace perseus::mxnet
