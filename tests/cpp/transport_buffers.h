// Buffers of all kinds for transports, filled with numbers that every dtype holds exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/reduce.h"
#include "base/shape.h"
#include "transport/fabric.h"

namespace perseus::testing {

// Numbers for the elements of a buffer. After the last comes the first again.
using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kNone = -1;

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

  // Writes the numbers to `count` elements from `begin` on.
  void fill(const Numbers& numbers, std::int64_t begin, std::int64_t count);
  void fill(const Numbers& numbers) { fill(numbers, 0, count()); }
  // Returns the first of these elements that is another number, or kNone.
  std::int64_t first_other(const Numbers& numbers, std::int64_t begin, std::int64_t count) const;
  std::int64_t first_other(const Numbers& numbers) const { return first_other(numbers, 0, count()); }
  // Returns true if the guards have not changed.
  bool margins_intact() const;

 private:
  Fabric& fabric_;
  DType dtype_;
  std::vector<Piece> pieces_;
  struct Block {
    std::uint8_t* memory = nullptr;
    std::size_t bytes = 0;
    bool in_arena = false;
  };
  std::vector<Block> blocks_;
};

// Cuts `count` elements into `pieces` uneven pieces, some of them empty.
std::vector<std::int64_t> cut(std::int64_t count, int pieces);

// Returns first, first + step and so on, modulo 251.
Numbers sequence(std::int64_t first, std::int64_t step = 1);
// Returns what a rank contributes from element `first` on: small whole numbers, times the divisor of the reduction's
// scale.
Numbers contribution(const Reduction& reduction, int rank, std::int64_t first = 0);
// Returns the reduction of these over `ranks` ranks, computed in int64.
Numbers reduced(const Reduction& reduction, int ranks, std::int64_t first = 0);

}  // namespace perseus::testing
