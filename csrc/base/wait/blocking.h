// Lets a thread that has other duties pass them on before it blocks.
#pragma once

#include <functional>
#include <utility>

namespace perseus {

// Call it before the calling thread waits for another rank or for a device, for more than a moment. Never throws.
inline void before_blocking();

// Makes before_blocking() call a function on the thread that has made this object, for as long as the object exists.
// At most one per thread.
class BlockingHook {
 public:
  explicit BlockingHook(std::function<void()> call) : call_(std::move(call)) { of_thread_ = this; }
  ~BlockingHook() { of_thread_ = nullptr; }
  BlockingHook(const BlockingHook&) = delete;
  BlockingHook& operator=(const BlockingHook&) = delete;

 private:
  friend void before_blocking();
  static inline thread_local BlockingHook* of_thread_ = nullptr;
  std::function<void()> call_;
};

inline void before_blocking() {
  if (BlockingHook::of_thread_ != nullptr) BlockingHook::of_thread_->call_();
}

}  // namespace perseus
