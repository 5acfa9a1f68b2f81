// Computes the expected results of the host kernels in the simplest way, one element at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/reduce.h"

namespace perseus::reference {

using Bytes = std::vector<std::uint8_t>;

// An element of any type. `whole` holds integers and booleans exactly, and `real` floating types.
struct Value {
  std::int64_t whole = 0;
  double real = 0.0;
};

Value decode(DType dtype, const std::uint8_t* from);
// Integers wrap; floating types round to nearest even.
void encode(DType dtype, Value value, std::uint8_t* to);

// Returns the bits of the nearest float16 or bfloat16, found by a search among all of them.
std::uint16_t nearest_half(DType dtype, double value);
double half_value(DType dtype, std::uint16_t bits);

// Returns one element of the result from one element of each source.
void reduce_one(const Reduction& reduction, bool packed, bool to_wire, std::span<const std::uint8_t* const> from,
                std::uint8_t* to);

// Returns one element as pack() writes it.
void pack_one(const Reduction& reduction, const std::uint8_t* from, std::uint8_t* to);

// Returns true if both have the same bits or both are NaN.
bool same(DType dtype, const std::uint8_t* a, const std::uint8_t* b);

// Returns ordinary numbers, with some infinities, NaN, zeros and subnormals if the type has them.
Bytes random_elements(DType dtype, std::size_t count, std::mt19937_64& random);

}  // namespace perseus::reference
