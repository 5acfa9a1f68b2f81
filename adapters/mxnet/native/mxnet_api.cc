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
  find(library, "MXGetLastError", api.last_error);
  int (*version_of)(int*) = nullptr;
  find(library, "MXGetVersion", version_of);
  int version = 0;
  version_of(&version);
  require_known_release(version);
  api.major_version = version / 10000;
  find(library, api.major_version < 2 ? "MXNDArrayFromDLPackEx" : "MXNDArrayFromDLPack", api.from_dlpack);
  api.row_layout = row_layout(library);
  return api;
}

}  // namespace perseus::mxnet
