#include "mxnet_api.h"

#include <dlfcn.h>

#include <stdexcept>

namespace perseus::mxnet {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("this MXNet has no function ") + name);
}

}  // namespace

MxnetApi load_mxnet(void* library) {
  MxnetApi api{};
  find(library, "MXEnginePushAsyncND", api.push);
  find(library, "MXShallowCopyNDArray", api.share);
  find(library, "MXNDArrayFree", api.free);
  find(library, "MXNDArrayGetData", api.data_of);
  find(library, "MXNDArrayFromDLPackEx", api.from_dlpack);
  find(library, "MXGetLastError", api.last_error);
  api.row_layout = row_layout(library);
  return api;
}

}  // namespace perseus::mxnet
