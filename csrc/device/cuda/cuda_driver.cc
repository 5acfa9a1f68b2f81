#include "device/cuda/cuda_driver.h"

#include <dlfcn.h>

#include "base/error.h"

namespace perseus::cuda {

namespace {

constexpr Result kOutOfMemory = 2;
constexpr int kOldestVersion = 11'000;  // the first version that loads this library's kernels

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class Library {
 public:
  explicit Library(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* why = dlerror();
    throw Error(ErrorKind::unavailable, "a tensor is on a CUDA device, but CUDA's driver cannot be opened (" +
                                            std::string(why == nullptr ? name : why) +
                                            "); install NVIDIA's driver, in a container start it with --gpus all, or "
                                            "pass tensors on the CPU");
  }

  template <class Function>
  void find(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }

  template <class Function>
  void get(Function*& function, const char* symbol) const {
    find(function, symbol);
    if (function != nullptr) return;
    throw Error(ErrorKind::unavailable, "CUDA's driver " + std::string(name_) + " has no function " + symbol +
                                            "; it is older than CUDA " + version_text(kOldestVersion) +
                                            ": install a newer driver");
  }

 private:
  const char* name_;
  void* handle_;  // never closed, because the driver's threads may be in it until the process ends
};

}  // namespace

std::string Driver::text(const char* call, Result result) const {
  const char *name = nullptr, *meaning = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) name = "unknown error";
  if (error_string(result, &meaning) != kSuccess || meaning == nullptr) meaning = "no text";
  return std::string(call) + ": " + name + " (" + std::to_string(result) + "): " + meaning;
}

void Driver::check(const char* call, Result result) const {
  if (result == kSuccess) return;
  throw Error(result == kOutOfMemory ? ErrorKind::unavailable : ErrorKind::transport, text(call, result));
}

Driver open_driver(const char* library) {
  const Library from(library);
  Driver driver{};
  from.get(driver.init, "cuInit");
  from.get(driver.driver_version, "cuDriverGetVersion");
  from.get(driver.error_name, "cuGetErrorName");
  from.get(driver.error_string, "cuGetErrorString");
  from.get(driver.device_count, "cuDeviceGetCount");
  from.get(driver.device, "cuDeviceGet");
  from.get(driver.device_name, "cuDeviceGetName");
  from.get(driver.device_attribute, "cuDeviceGetAttribute");
  from.get(driver.retain, "cuDevicePrimaryCtxRetain");
  from.get(driver.release, "cuDevicePrimaryCtxRelease_v2");
  from.get(driver.push, "cuCtxPushCurrent_v2");
  from.get(driver.pop, "cuCtxPopCurrent_v2");
  from.get(driver.set_current, "cuCtxSetCurrent");
  from.get(driver.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  from.get(driver.context_synchronize, "cuCtxSynchronize");
  from.get(driver.stream_create, "cuStreamCreateWithPriority");
  from.get(driver.stream_destroy, "cuStreamDestroy_v2");
  from.get(driver.stream_wait, "cuStreamWaitEvent");
  from.get(driver.stream_is_capturing, "cuStreamIsCapturing");
  from.get(driver.event_create, "cuEventCreate");
  from.get(driver.event_destroy, "cuEventDestroy_v2");
  from.get(driver.event_record, "cuEventRecord");
  from.get(driver.event_query, "cuEventQuery");
  from.get(driver.event_synchronize, "cuEventSynchronize");
  from.get(driver.allocate, "cuMemAlloc_v2");
  from.get(driver.free, "cuMemFree_v2");
  from.find(driver.pool_create, "cuMemPoolCreate");
  from.find(driver.pool_destroy, "cuMemPoolDestroy");
  from.find(driver.pool_set, "cuMemPoolSetAttribute");
  from.find(driver.allocate_from_pool, "cuMemAllocFromPoolAsync");
  from.find(driver.free_async, "cuMemFreeAsync");
  from.get(driver.allocate_host, "cuMemHostAlloc");
  from.get(driver.free_host, "cuMemFreeHost");
  from.get(driver.copy, "cuMemcpyAsync");
  from.get(driver.set_bytes, "cuMemsetD8Async");
  from.get(driver.module_load, "cuModuleLoadDataEx");
  from.get(driver.module_unload, "cuModuleUnload");
  from.get(driver.module_function, "cuModuleGetFunction");
  from.get(driver.launch, "cuLaunchKernel");
  return driver;
}

void start_driver(const Driver& driver) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorKind::unavailable, why); };
  if (const auto result = driver.init(0); result != kSuccess) {
    refuse("CUDA does not start (" + driver.text("cuInit", result) +
           "); check that nvidia-smi works here and that CUDA_VISIBLE_DEVICES names a device");
  }
  int version = 0, devices = 0;
  driver.check("cuDriverGetVersion", driver.driver_version(&version));
  if (version < kOldestVersion) {
    refuse("CUDA's driver is of version " + version_text(version) + ", and at least " + version_text(kOldestVersion) +
           " is needed; install a newer one");
  }
  driver.check("cuDeviceGetCount", driver.device_count(&devices));
  if (devices == 0) refuse("CUDA finds no device; check whether CUDA_VISIBLE_DEVICES hides all of them");
}

const Driver& driver() {
  // The next call tries again if this one fails.
  static const Driver the_one = [] {
    auto opened = open_driver(kDriverLibrary);
    start_driver(opened);
    return opened;
  }();
  return the_one;
}

}  // namespace perseus::cuda
