// Arrays of MXNet in memory of the core's, which stays as long as one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mxnet_api.h"
#include "perseus.h"

namespace perseus::mxnet {

// A run of memory, zeros at first: in the arena, or private where that has no room.
class Memory {
 public:
  // Throws std::bad_alloc.
  Memory(const PerseusApi& core, std::size_t bytes);

  // Empty if it is in the arena.
  const std::string& why_private() const { return why_private_; }

  // An array over a part of it. `kind`, `bits`: DLPack's code of the type and its width. Throws std::runtime_error.
  Array view(const MxnetApi& mxnet, std::size_t offset_bytes, int kind, int bits, const std::int64_t* extents,
             int dimensions) const;

 private:
  std::shared_ptr<void> data_;
  std::string why_private_;
};

}  // namespace perseus::mxnet
