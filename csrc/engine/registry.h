// Device memory that comes again and again (buckets of gradients), known to the transports that reduce it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace perseus {

class Registry {
 public:
  // Until the result is gone, which must be before the memory is. Any thread; letting go waits for what is queued.
  std::shared_ptr<void> add(void* memory, std::size_t bytes);

  // What has been added since the last time is enrolled: `enroll` gives what holds it with the transports. Throws what
  // that throws.
  using Enroll = std::function<std::vector<std::shared_ptr<void>>(void* memory, std::size_t bytes)>;
  void enroll_new(const Enroll& enroll);

  // The transports go away.
  void end();

 private:
  struct Entry {
    void* memory = nullptr;
    std::size_t bytes = 0;
    std::mutex mutex;  // guards the rest
    bool gone = false;
    std::vector<std::shared_ptr<void>> held;

    void end();
  };

  std::mutex mutex_;  // guards the rest
  std::vector<std::weak_ptr<Entry>> new_, enrolled_;
};

}  // namespace perseus
