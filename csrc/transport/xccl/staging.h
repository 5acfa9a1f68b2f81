// Keeps the staging memory of a device between calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/xccl/device.h"

namespace perseus::xccl {

inline std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

class Staging {
 public:
  // The blocks that may be in use at the same time.
  enum Use : std::size_t { packed, received, result, kUses };

  explicit Staging(Device& device) : device_(device) {}
  ~Staging() {
    for (auto& block : blocks_) drop(block);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Returns a block of at least `bytes` bytes. Its contents are lost if it grows.
  std::byte* get(Use use, std::size_t bytes) {
    auto& block = blocks_[use];
    if (block.bytes < bytes) {
      drop(block);
      block.memory = device_.allocate(bytes);
      block.bytes = bytes;
    }
    return static_cast<std::byte*>(block.memory);
  }

  // Never frees the blocks, because an abandoned call may still write to them.
  void abandon() { blocks_ = {}; }

  // Frees unusually large blocks.
  void trim() {
    for (auto& block : blocks_) {
      if (block.bytes > kKeptBytes) drop(block);
    }
  }

 private:
  static constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

  struct Block {
    void* memory = nullptr;
    std::size_t bytes = 0;
  };

  void drop(Block& block) {
    if (block.memory != nullptr) device_.release(block.memory);
    block = {};
  }

  Device& device_;
  std::array<Block, kUses> blocks_;
};

}  // namespace perseus::xccl
