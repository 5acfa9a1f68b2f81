// Registers device memory that is reduced repeatedly (buckets of gradients) with the transports.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace perseus {

class Registry {
 public:
  // The memory stays registered until the returned handle is released. Release the handle before freeing the memory.
  // Thread-safe. The release blocks until queued work is done.
  std::shared_ptr<void> add(void* memory, std::size_t bytes);

  // Registers what was added since the last call. `enroll` registers one piece of memory with the transports, and
  // returns the registrations. Throws what `enroll` throws.
  using Enroll = std::function<std::vector<std::shared_ptr<void>>(void* memory, std::size_t bytes)>;
  void enroll_new(const Enroll& enroll);

  // Ends all registrations, because the transports are about to be destroyed.
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
