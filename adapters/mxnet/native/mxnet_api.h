// Functions of MXNet's C API, from the library that Python has loaded. No header of MXNet is included, so the
// adapter is built without MXNet.
#pragma once

#include <string>

#include "../compat/layouts.h"

namespace perseus::mxnet {

// A function that the engine calls to start work.
using Start = void (*)(void* run, void* on_complete, void* argument);

struct MxnetApi {
  int (*push)(Start start, void* argument, void (*free)(void*), const void* context, Array* read, int read_count,
              Array* written, int written_count, const int* property, int priority, const char* name, bool wait);
  int (*share)(Array from, Array* to);
  int (*free)(Array array);
  int (*data_of)(Array array, void** data);
  int (*from_dlpack)(const void* tensor, bool transient, Array* array);
  const char* (*last_error)();
  RowLayout row_layout;
};

// Looks the functions up in `library`, from dlopen. Throws a std::runtime_error that names a missing one.
MxnetApi load_mxnet(void* library);

}  // namespace perseus::mxnet
