// The layouts of MXNet's arrays, and of what its engine passes to a function that it runs.
#pragma once

#include <array>

namespace perseus::mxnet {

using Array = void*;  // NDArrayHandle

// Returns an address that arrays have in common if and only if they are views of the same memory.
//
// Relies on: mxnet::NDArray beginning with the pointer to its NDArray::Chunk.
// Tried with: 1.9.1.
// Notices: a view has another address than its array, or two arrays have the same.
// Lost then: collectives of this adapter raise an UnavailableError that says so.
void* memory_of(Array array);

// Functions that change memory in one of oneDNN's layouts back to rows. Null if MXNet was built without oneDNN.
struct RowLayout {
  // Changes an array's memory. The engine orders it among the operations on the array.
  void (*change)(const void* array) = nullptr;
  // Changes memory (see memory_of) at once. The caller must be the only user of the memory.
  void (*change_now)(void* memory) = nullptr;
};

// Returns the functions of a library that dlopen has returned.
//
// Relies on: the symbols of NDArray::Reorder2DefaultAsync() const and NDArray::Chunk::Reorder2Default().
// Tried with: 1.9.1.
// Notices: one of the two symbols is missing.
// Lost then: nothing if MXNet has no oneDNN. With it, collectives of this adapter raise an UnavailableError that says
// so.
RowLayout row_layout(void* library);

// mxnet::engine::CallbackOnComplete.
struct EngineCallback {
  void (*call)(void* engine, void* operation, const void* error);
  void* engine;
  void* operation;
};

// mxnet::Context of the CPU: the device's type and number. MXNet reads no more of the context of a CPU.
struct Context {
  int device_type = 1;
  int device = 0;
  std::array<char, 56> rest{};
};

// FnProperty::kAsync: the engine starts a function without dependencies on the thread that pushes it. To wake a thread
// of the engine (kCPUPrioritized) takes longer: with kAsync, 154 ready tensors are pushed in a third of the time.
constexpr int kAsynchronous = 4;

// Returns a copy of a callback that MXNet has passed by address, from the stack of the engine's thread.
//
// Relies on: CallbackOnComplete being three words: a function, the engine and the operation. The layouts of Context and
// FnProperty are relied on in the same way.
// Tried with: 1.9.1.
// Notices: the major version of MXNet is not 1.
// Lost then: `import perseus_like.mxnet` fails with an ImportError that names the release that works.
EngineCallback callback_at(const void* address);

}  // namespace perseus::mxnet
