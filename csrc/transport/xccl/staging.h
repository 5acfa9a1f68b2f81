// Memory of a device in which collectives are staged, kept from one call to the next.
#pragma once

#include <array>
#include <cstddef>

#include "transport/xccl/device.h"

namespace perseus::xccl {

class Staging {
 public:
  // What may be in use at once.
  enum Use : std::size_t { packed, arrived, result, kUses };

  explicit Staging(Device& device) : device_(device) {}
  ~Staging() {
    for (auto& block : blocks_) drop(block);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // What was there before is lost when it has to grow.
  std::byte* get(Use use, std::size_t bytes) {
    auto& block = blocks_[use];
    if (block.bytes < bytes) {
      drop(block);
      block.memory = device_.allocate(bytes);
      block.bytes = bytes;
    }
    return static_cast<std::byte*>(block.memory);
  }

  // For good: somebody may still write there.
  void leave() { blocks_ = {}; }

  // Lets unusually large blocks go.
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
