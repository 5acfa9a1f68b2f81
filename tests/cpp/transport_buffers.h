// Buffers of all kinds for transports, filled with numbers that every dtype holds exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/reduce.h"
#include "base/shape.h"
#include "transport/fabric.h"

namespace perseus::testing {

// The kind of a rank's memory.
enum class Place { heap, arena, mixed };  // mixed: every second piece in the arena

// `count` elements in one or several pieces, with guards around them that must not change.
class Buffer {
 public:
  Buffer(Fabric& fabric, Place place, DType dtype, const std::vector<std::int64_t>& counts);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const std::vector<Piece>& pieces() const { return pieces_; }
  void* data() const { return pieces_.at(0).data; }
  std::int64_t count() const;

  void set(std::int64_t element, std::int64_t value);
  std::int64_t get(std::int64_t element) const;
  // Returns true if the guards have not changed.
  bool margins_intact() const;

 private:
  std::uint8_t* at(std::int64_t element) const;

  Fabric& fabric_;
  DType dtype_;
  std::vector<Piece> pieces_;
  struct Block {
    std::uint8_t* memory = nullptr;
    std::size_t bytes = 0;
    bool in_arena = false;
  };
  std::vector<Block> blocks_;
  // The piece of the last element and its first element, because elements are mostly accessed in order.
  mutable std::size_t piece_ = 0;
  mutable std::int64_t first_ = 0;
};

// Cuts `count` elements into `pieces` uneven pieces, some of them empty.
std::vector<std::int64_t> cut(std::int64_t count, int pieces);

// Returns the contribution of rank r to element i: a small whole number. `unit` makes the sums divisible.
std::int64_t contribution(DType dtype, ReduceOp op, int rank, std::int64_t element, std::int64_t unit);
// Returns the reduction of these over `ranks` ranks, computed in int64.
std::int64_t expected(DType dtype, ReduceOp op, int ranks, std::int64_t element, std::int64_t unit);

}  // namespace perseus::testing
