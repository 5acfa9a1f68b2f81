// The functions of MXNet's C API that are used here, looked up in the library that Python has loaded. No header of
// MXNet is included, so that one build serves all its releases.
#pragma once

#include <string>

namespace perseus::mxnet {

using Array = void*;  // NDArrayHandle

// mxnet::engine::CallbackOnComplete and, from 2.0, CallbackOnStart: three words that may be copied. The argument that
// is passed is on the engine's stack.
struct EngineCallback {
  void (*call)(void* engine, void* operation, const void* error);
  void* engine;
  void* operation;
};

// What the engine calls to start work. Its type depends on MXNet's release:
// void(void* run, [from 2.0: void* on_start,] void* on_complete, void* argument).
using Start = void (*)();

struct MxnetApi {
  int (*push)(Start start, void* argument, void (*free)(void*), const void* context, Array* read, int read_count,
              Array* written, int written_count, const int* property, int priority, const char* name, bool wait);
  int (*share)(Array from, Array* to);
  int (*free)(Array array);
  int (*data_of)(Array array, void** data);
  int (*from_dlpack)(const void* tensor, bool transient, Array* array);
  const char* (*last_error)();
  // Put memory that oneDNN has laid out in its own way back into rows: an array's, in the engine's order of things; or
  // at once, by who has it for itself. Null where MXNet was built without oneDNN.
  void (*lay_out_in_rows)(const void* array);
  void (*lay_out_in_rows_now)(void* memory);
  int major_version;
};

// What an array shares with its views: mxnet::NDArray begins with the pointer to it.
inline void* memory_of(Array array) { return *static_cast<void* const*>(array); }

// `library`: from dlopen. Throws std::runtime_error that names what is missing.
MxnetApi load_mxnet(void* library);

}  // namespace perseus::mxnet
