// Lets a thread that has other duties pass them on before it blocks.
#pragma once

#include <functional>

namespace perseus {

// Call it before the calling thread waits for another rank or for a device, for more than a moment. Never throws.
void before_blocking();

// Makes before_blocking() call a function on the thread that has made this object, for as long as the object exists.
// At most one per thread.
class BlockingHook {
 public:
  explicit BlockingHook(std::function<void()> call);
  ~BlockingHook();
  BlockingHook(const BlockingHook&) = delete;
  BlockingHook& operator=(const BlockingHook&) = delete;

 private:
  friend void before_blocking();
  std::function<void()> call_;
};

}  // namespace perseus
