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
#define PERSEUS_REQUIRE(member, name, parameters) from.get(driver.member, name);
#define PERSEUS_FIND(member, name, parameters) from.find(driver.member, name);
  PERSEUS_CUDA_FUNCTIONS(PERSEUS_REQUIRE, PERSEUS_FIND)
#undef PERSEUS_REQUIRE
#undef PERSEUS_FIND
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
