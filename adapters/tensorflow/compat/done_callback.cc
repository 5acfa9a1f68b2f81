#include "done_callback.h"

#include <array>
#include <atomic>
#include <cstring>

namespace perseus::tensorflow {

namespace {

std::atomic<bool> distrusted{false};

}  // namespace

std::function<void()> copy_of(const TF_AsyncOpKernelDoneCallback* done) {
  using Done = std::function<void()>;
  static_assert(sizeof(Done) == 4 * sizeof(void*));
  std::array<const void*, 4> words{};
  std::memcpy(words.data(), done, sizeof words);
  static std::atomic<const void*> known_manager{nullptr}, known_invoker{nullptr};
  if (distrusted) return nullptr;
  if (words[2] != known_manager.load() || words[3] != known_invoker.load()) {
    if (words[2] == nullptr || words[3] == nullptr || !TensorFlow::owns(words[2]) || !TensorFlow::owns(words[3]))
      return nullptr;
    known_manager = words[2];
    known_invoker = words[3];
  }
  return *reinterpret_cast<const Done*>(done);
}

void distrust_done(bool distrust) { distrusted = distrust; }

}  // namespace perseus::tensorflow
