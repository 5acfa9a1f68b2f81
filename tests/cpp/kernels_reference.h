// What the host kernels should compute, said plainly: one element at a time, no bit tricks.
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

// An element of any type: integers and booleans exactly in `whole`, floating types exactly in `real`.
struct Value {
  std::int64_t whole = 0;
  double real = 0.0;
};

Value decode(DType dtype, const std::uint8_t* from);
// Integers wrap; floating types round to nearest even.
void encode(DType dtype, Value value, std::uint8_t* to);

// The nearest float16 or bfloat16, found by search among all of them; its bits.
std::uint16_t nearest_half(DType dtype, double value);
double half_value(DType dtype, std::uint16_t bits);

// One element of the result, from one element of each source.
void reduce_one(const Reduction& reduction, bool packed, bool to_wire, std::span<const std::uint8_t* const> from,
                std::uint8_t* to);

// One element as `pack` leaves it.
void pack_one(const Reduction& reduction, const std::uint8_t* from, std::uint8_t* to);

// The same bits, or NaN in both.
bool same(DType dtype, const std::uint8_t* a, const std::uint8_t* b);

// Ordinary numbers, with some infinities, NaN, zeros and subnormals where the type has them.
Bytes random_elements(DType dtype, std::size_t count, std::mt19937_64& random);

}  // namespace perseus::reference
