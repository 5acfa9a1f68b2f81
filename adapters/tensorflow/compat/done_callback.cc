#include "done_callback.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>

namespace perseus::tensorflow {

namespace {

std::atomic<bool> distrusted{false};

// Returns true if the address is in one of TensorFlow's own libraries.
bool is_tensorflows(const void* address) {
  Dl_info info{};
  return address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
         std::string_view(info.dli_fname).find("tensorflow") != std::string_view::npos;
}

}  // namespace

std::function<void()> copy_of(const TF_AsyncOpKernelDoneCallback* done) {
  using Done = std::function<void()>;
  static_assert(sizeof(Done) == 4 * sizeof(void*));
  std::array<const void*, 4> words{};
  std::memcpy(static_cast<void*>(words.data()), done, sizeof words);
  static std::atomic<const void*> known_manager{nullptr}, known_invoker{nullptr};
  if (distrusted) return nullptr;
  if (words[2] != known_manager.load() || words[3] != known_invoker.load()) {
    if (!is_tensorflows(words[2]) || !is_tensorflows(words[3])) return nullptr;
    known_manager = words[2];
    known_invoker = words[3];
  }
  return *reinterpret_cast<const Done*>(done);
}

void distrust_done(bool distrust) { distrusted = distrust; }

}  // namespace perseus::tensorflow
