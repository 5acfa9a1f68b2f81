// Allocates device memory without waiting for the device.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/cuda_driver.h"

namespace perseus::cuda {

// Device memory that is allocated and freed in the order of streams. The driver does that from CUDA 11.2 on, unless the
// device is a virtual one that cannot. Otherwise freed memory is kept and used again once its last stream is done with
// it, because cuMemFree waits for the whole device. The device must be current in all calls. Thread-safe.
class MemoryPool {
 public:
  MemoryPool(const Driver& driver, DeviceNumber device);
  // All memory must have been freed.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Returns memory for work on the stream. Throws Error.
  Pointer allocate(std::size_t bytes, StreamHandle stream);
  // Frees memory after the work that is queued on the stream now. Does nothing and returns false if the driver refuses.
  bool free(Pointer memory, StreamHandle stream);
  // Frees memory at the end, when the driver may wait for the device.
  void free_at_end(Pointer memory);

 private:
  // Memory outside of the driver's pool.
  struct Block {
    Pointer memory = 0;
    std::size_t bytes = 0;
    bool in_use = true;
    EventHandle last = nullptr;  // recorded when the memory was freed
  };

  void make_pool(DeviceNumber device);
  Pointer allocate_block(std::size_t bytes);

  const Driver& driver_;
  PoolHandle pool_ = nullptr;  // null: the driver has no pools
  std::mutex mutex_;           // guards blocks_
  std::vector<Block> blocks_;
};

}  // namespace perseus::cuda
