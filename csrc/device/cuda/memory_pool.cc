#include "device/cuda/memory_pool.h"

#include <algorithm>
#include <cstdint>

namespace perseus::cuda {
namespace {

constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;  // freed memory that the pool does not return

}  // namespace

MemoryPool::MemoryPool(const Driver& driver, DeviceNumber device) : driver_(driver) {
  const bool has_pools = driver_.pool_create != nullptr && driver_.pool_destroy != nullptr &&
                         driver_.pool_set != nullptr && driver_.allocate_from_pool != nullptr &&
                         driver_.free_async != nullptr;
  if (has_pools) make_pool(device);
}

// By default a pool gives a stream memory that another stream has freed, and makes the first stream wait for the other.
// The streams of two process sets would then wait for each other, in another order on each rank.
void MemoryPool::make_pool(DeviceNumber device) {
  PoolProperties properties;
  properties.device = device;
  if (driver_.pool_create(&pool_, &properties) != kSuccess) {
    pool_ = nullptr;
    return;
  }
  int never = 0;
  auto kept = kKeptBytes;
  const bool is_set = driver_.pool_set(pool_, kPoolReusesByDependencies, &never) == kSuccess &&
                      driver_.pool_set(pool_, kPoolReleaseThreshold, &kept) == kSuccess;
  if (is_set) return;
  driver_.pool_destroy(pool_);
  pool_ = nullptr;
}

// Ignores failures, because the driver may be gone at the end of a process.
MemoryPool::~MemoryPool() {
  for (const auto& block : blocks_) {
    if (block.last != nullptr) driver_.event_destroy(block.last);
    driver_.free(block.memory);
  }
  if (pool_ != nullptr) driver_.pool_destroy(pool_);
}

Pointer MemoryPool::allocate(std::size_t bytes, StreamHandle stream) {
  const auto size = std::max<std::size_t>(bytes, 1);
  if (pool_ == nullptr) return allocate_block(size);
  Pointer memory = 0;
  driver_.check("cuMemAllocFromPoolAsync", driver_.allocate_from_pool(&memory, size, pool_, stream));
  return memory;
}

// Uses the smallest freed block that is not much too large and that no stream uses any more.
Pointer MemoryPool::allocate_block(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  Block* best = nullptr;
  for (auto& block : blocks_) {
    const bool fits = !block.in_use && block.bytes >= bytes && block.bytes / 2 <= bytes;
    if (!fits || (best != nullptr && best->bytes <= block.bytes)) continue;
    if (driver_.event_query(block.last) == kSuccess) best = &block;
  }
  if (best != nullptr) {
    best->in_use = true;
    return best->memory;
  }
  Block made{.bytes = bytes};
  driver_.check("cuMemAlloc", driver_.allocate(&made.memory, bytes));
  blocks_.push_back(made);
  return made.memory;
}

bool MemoryPool::free(Pointer memory, StreamHandle stream) {
  if (pool_ != nullptr) return driver_.free_async(memory, stream) == kSuccess;
  const std::scoped_lock lock(mutex_);
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [memory](const Block& block) { return block.memory == memory; });
  if (found == blocks_.end()) return false;
  if (found->last == nullptr && driver_.event_create(&found->last, kNoTiming) != kSuccess) return false;
  if (driver_.event_record(found->last, stream) != kSuccess) return false;
  found->in_use = false;
  return true;
}

// The destructor frees blocks.
void MemoryPool::free_at_end(Pointer memory) {
  if (pool_ != nullptr) driver_.free(memory);
}

}  // namespace perseus::cuda
