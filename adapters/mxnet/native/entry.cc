// The functions that Python calls by ctypes.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>

#include "memory.h"
#include "operation.h"

namespace {

using perseus::mxnet::Array;
using perseus::mxnet::Libraries;
using perseus::mxnet::Memory;
using perseus::mxnet::Operation;

// Set once, before anything is pushed, and never destroyed: the engine's threads outlive Python.
const Libraries* libraries = nullptr;

// The fields of engine.Push, in its order.
struct Push {
  const char* name;
  std::int32_t verb;
  std::int32_t process_set;
  PerseusReduceOptions reduce;
  std::int32_t root;
  std::int32_t priority;
  std::int32_t count;
  const Array* inputs;
  const Array* outputs;
  const std::int32_t* dtypes;
  const std::int32_t* dimensions;
  const std::int64_t* extents;  // of all inputs, one after the other
  const Array* also_written;
  std::int32_t also_written_count;
};

PerseusRequest request_of(const Push& push) {
  PerseusRequest request{};
  request.verb = push.verb;
  request.process_set = push.process_set;
  request.reduce = push.reduce;
  request.root = push.root;
  return request;
}

template <typename Call>
int to_c(char* message, std::size_t capacity, const Call& call) {
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, capacity, "%s", error.what());
    return -1;
  }
}

}  // namespace

#define PERSEUS_EXPORT extern "C" __attribute__((visibility("default")))

// Opens the adapter. `mxnet` is the loaded library, from dlopen; `error_names` is indexed by ErrorKind. Returns 0, or
// -1 with the reason in `message`.
PERSEUS_EXPORT int perseus_mxnet_open(const PerseusApi* core, void* mxnet, const char* const* error_names,
                                      std::int32_t error_count, char* message, std::size_t capacity) {
  return to_c(message, capacity, [&] {
    libraries = new Libraries{core, perseus::mxnet::load_mxnet(mxnet), {error_names, error_names + error_count}};
  });
}

// Returns 1 if two arrays are views of the same memory, otherwise 0.
PERSEUS_EXPORT int perseus_mxnet_share_memory(Array one, Array other) {
  return perseus::mxnet::memory_of(one) == perseus::mxnet::memory_of(other) ? 1 : 0;
}

PERSEUS_EXPORT int perseus_mxnet_push(const Push* push, char* message, std::size_t capacity) {
  return to_c(message, capacity, [&] {
    auto operation = std::make_unique<Operation>(*libraries, request_of(*push), push->name);
    const auto* extents = push->extents;
    for (std::int32_t i = 0; i < push->count; ++i) {
      const auto* end = extents + push->dimensions[i];
      operation->inputs.push_back({push->inputs[i], push->dtypes[i], {extents, end}});
      operation->outputs.push_back(push->outputs[i]);
      extents = end;
    }
    operation->also_written.assign(push->also_written, push->also_written + push->also_written_count);
    Operation::push(operation.release(), push->priority);
  });
}

// Returns null if there is no memory, with the reason in `message`. If the memory is private, `message` has the reason
// for that.
PERSEUS_EXPORT const Memory* perseus_mxnet_allocate(std::size_t bytes, char* message, std::size_t capacity) {
  const Memory* memory = nullptr;
  to_c(message, capacity, [&] {
    memory = new Memory(*libraries->core, bytes);
    std::snprintf(message, capacity, "%s", memory->why_private().c_str());
  });
  return memory;
}

PERSEUS_EXPORT void perseus_mxnet_release(const Memory* memory) { delete memory; }

PERSEUS_EXPORT int perseus_mxnet_view(const Memory* memory, std::size_t offset_bytes, std::int32_t kind,
                                      std::int32_t bits, const std::int64_t* extents, std::int32_t dimensions,
                                      Array* array, char* message, std::size_t capacity) {
  return to_c(message, capacity,
              [&] { *array = memory->view(libraries->mxnet, offset_bytes, kind, bits, extents, dimensions); });
}
