// Arrays of MXNet in memory of the core, which lives as long as one of the arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mxnet_api.h"
#include "perseus.h"

namespace perseus::mxnet {

// Memory that is zero at first: in the arena, or private if the arena is full.
class Memory {
 public:
  // Throws std::bad_alloc.
  Memory(const PerseusApi& core, std::size_t bytes);

  // Returns why the memory is private; empty if it is in the arena.
  const std::string& why_private() const { return why_private_; }

  // Makes an array over a part of the memory. `kind` and `bits` are DLPack's code of the type and its width. Throws
  // std::runtime_error.
  Array view(const MxnetApi& mxnet, std::size_t offset_bytes, int kind, int bits, const std::int64_t* extents,
             int dimensions) const;

 private:
  std::shared_ptr<void> data_;
  std::string why_private_;
};

}  // namespace perseus::mxnet
