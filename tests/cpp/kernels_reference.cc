#include "kernels_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace perseus::reference {

namespace {

bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

template <class T>
T read(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write(std::uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// A separate function, so that no compiler fuses a multiplication and an addition.
[[gnu::noinline]] double add(double a, double b) { return a + b; }
[[gnu::noinline]] double multiply(double a, double b) { return a * b; }

// One sum or product in double that is rounded to float equals float arithmetic.
double rounded_for(DType wire, double value) {
  return wire == DType::float64 ? value : static_cast<double>(static_cast<float>(value));
}

double least(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? a : b; }
double greatest(double a, double b) { return std::isnan(a) ? a : std::isnan(b) ? b : a > b ? a : b; }

double combine_real(DType wire, ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum: return rounded_for(wire, add(a, b));
    case ReduceOp::product: return rounded_for(wire, multiply(a, b));
    case ReduceOp::min: return least(a, b);
    case ReduceOp::max: return greatest(a, b);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor: break;
  }
  std::abort();
}

std::int64_t combine_whole(ReduceOp op, std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a);
  const auto y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::sum: return static_cast<std::int64_t>(x + y);
    case ReduceOp::product: return static_cast<std::int64_t>(x * y);
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::band: return a & b;
    case ReduceOp::bor: return a | b;
    case ReduceOp::bxor: return a ^ b;
  }
  std::abort();
}

bool combine_truth(ReduceOp op, bool a, bool b) {
  if (op == ReduceOp::bxor) return a != b;
  const bool all = op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band;
  return all ? a && b : a || b;
}

// Returns the value rounded to the type.
Value through(DType dtype, Value value) {
  std::uint8_t bytes[8];
  encode(dtype, value, bytes);
  return decode(dtype, bytes);
}

__extension__ using Wide = __int128;

std::int64_t times(std::int64_t value, double factor) {
  if (factor == std::trunc(factor))
    return static_cast<std::int64_t>(static_cast<Wide>(value) * static_cast<Wide>(factor));
  const double product = std::trunc(static_cast<double>(value) * factor);
  if (std::fabs(product) < 0x1p63) return static_cast<std::int64_t>(product);
  return product < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

// Returns the contribution of a source in the type of the sum.
Value contribution(const Reduction& reduction, bool packed, const std::uint8_t* from) {
  Value value = decode(packed ? reduction.wire_dtype : reduction.dtype, from);
  const double pre = packed ? 1.0 : reduction.scale.pre;
  if (reduction.dtype == DType::boolean || packed) return value;
  if (!is_floating(reduction.dtype)) {
    return pre == 1.0 ? value : through(reduction.dtype, {times(value.whole, pre), 0});
  }
  value.real = rounded_for(reduction.wire_dtype, value.real);
  if (pre != 1.0)
    value.real = rounded_for(reduction.wire_dtype, multiply(value.real, rounded_for(reduction.wire_dtype, pre)));
  return pre != 1.0 || reduction.wire_dtype != reduction.dtype ? through(reduction.wire_dtype, value) : value;
}

Value scaled_result(const Reduction& reduction, Value value) {
  const auto& scale = reduction.scale;
  if (reduction.dtype == DType::boolean) return value;
  if (is_floating(reduction.dtype)) {
    const double factor = rounded_for(reduction.wire_dtype, scale.post / static_cast<double>(scale.divisor));
    return {0, factor == 1.0 ? value.real : rounded_for(reduction.wire_dtype, multiply(value.real, factor))};
  }
  const auto quotient = value.whole / scale.divisor;
  return scale.post == 1.0 ? Value{quotient, 0} : Value{times(quotient, scale.post), 0};
}

}  // namespace

double half_value(DType dtype, std::uint16_t bits) {
  const int digits = dtype == DType::float16 ? 10 : 7;
  const int bias = dtype == DType::float16 ? 15 : 127;
  const int exponent = (bits & 0x7fff) >> digits;
  const int fraction = bits & ((1 << digits) - 1);
  double value = 0;
  if (exponent == 2 * bias + 1) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias - digits);
  } else {
    value = std::ldexp(fraction + (1 << digits), exponent - bias - digits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

namespace {

// Returns values by their bits, with the next finite number in the place of infinity.
std::vector<double> positive_values(DType dtype) {
  std::vector<double> values;
  for (std::uint16_t bits = 0; !std::isinf(half_value(dtype, bits)); ++bits) values.push_back(half_value(dtype, bits));
  values.push_back(std::ldexp(1.0, dtype == DType::float16 ? 16 : 128));
  return values;
}

}  // namespace

std::uint16_t nearest_half(DType dtype, double value) {
  const std::uint16_t infinity = dtype == DType::float16 ? 0x7c00 : 0x7f80;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  if (std::isnan(value)) return sign | infinity | (infinity == 0x7c00 ? 0x200 : 0x40);
  if (std::isinf(value)) return sign | infinity;
  static const std::vector<double> kFloat16 = positive_values(DType::float16);
  static const std::vector<double> kBFloat16 = positive_values(DType::bfloat16);
  const auto& all = dtype == DType::float16 ? kFloat16 : kBFloat16;
  if (size >= all.back()) return sign | infinity;
  const auto high = std::upper_bound(all.begin(), all.end(), size) - all.begin();
  const auto low = high - 1;
  const double below = size - all[static_cast<std::size_t>(low)];
  const double above = all[static_cast<std::size_t>(high)] - size;
  const auto nearest = below < above ? low : above < below ? high : low % 2 == 0 ? low : high;
  return static_cast<std::uint16_t>(sign | nearest);
}

Value decode(DType dtype, const std::uint8_t* from) {
  switch (dtype) {
    case DType::uint8: return {*from, 0};
    case DType::int8: return {read<std::int8_t>(from), 0};
    case DType::int16: return {read<std::int16_t>(from), 0};
    case DType::uint16: return {read<std::uint16_t>(from), 0};
    case DType::int32: return {read<std::int32_t>(from), 0};
    case DType::int64: return {read<std::int64_t>(from), 0};
    case DType::boolean: return {*from != 0, 0};
    case DType::float16:
    case DType::bfloat16: return {0, half_value(dtype, read<std::uint16_t>(from))};
    case DType::float32: return {0, read<float>(from)};
    case DType::float64: return {0, read<double>(from)};
  }
  std::abort();
}

void encode(DType dtype, Value value, std::uint8_t* to) {
  switch (dtype) {
    case DType::uint8:
    case DType::int8: return write(to, static_cast<std::uint8_t>(value.whole));
    case DType::int16:
    case DType::uint16: return write(to, static_cast<std::uint16_t>(value.whole));
    case DType::int32: return write(to, static_cast<std::int32_t>(value.whole));
    case DType::int64: return write(to, value.whole);
    case DType::boolean: return write(to, static_cast<std::uint8_t>(value.whole != 0));
    case DType::float16:
    case DType::bfloat16: return write(to, nearest_half(dtype, value.real));
    case DType::float32: return write(to, static_cast<float>(value.real));
    case DType::float64: return write(to, value.real);
  }
  std::abort();
}

void reduce_one(const Reduction& reduction, bool packed, bool to_wire, std::span<const std::uint8_t* const> from,
                std::uint8_t* to) {
  Value result = contribution(reduction, packed, from[0]);
  for (const auto* source : from.subspan(1)) {
    const Value next = contribution(reduction, packed, source);
    if (is_floating(reduction.dtype)) {
      result.real = combine_real(reduction.wire_dtype, reduction.op, result.real, next.real);
    } else if (reduction.dtype == DType::boolean) {
      result.whole = combine_truth(reduction.op, result.whole != 0, next.whole != 0);
    } else {
      result = through(reduction.dtype, {combine_whole(reduction.op, result.whole, next.whole), 0});
    }
  }
  result = through(reduction.wire_dtype, scaled_result(reduction, result));
  encode(to_wire ? reduction.wire_dtype : reduction.dtype, result, to);
}

void pack_one(const Reduction& reduction, const std::uint8_t* from, std::uint8_t* to) {
  encode(reduction.wire_dtype, contribution(reduction, false, from), to);
}

bool same(DType dtype, const std::uint8_t* a, const std::uint8_t* b) {
  if (std::memcmp(a, b, size_of(dtype)) == 0) return true;
  return is_floating(dtype) && std::isnan(decode(dtype, a).real) && std::isnan(decode(dtype, b).real);
}

Bytes random_elements(DType dtype, std::size_t count, std::mt19937_64& random) {
  Bytes bytes(count * size_of(dtype));
  std::normal_distribution<double> normal(0.0, 3.0);
  for (std::size_t i = 0; i < count; ++i) {
    auto* to = bytes.data() + i * size_of(dtype);
    const auto any = random();
    if (dtype == DType::boolean) {
      encode(dtype, {static_cast<std::int64_t>(any % 2), 0}, to);
    } else if (!is_floating(dtype)) {
      encode(dtype, {static_cast<std::int64_t>(any), 0}, to);
    } else if (any % 16 == 0) {  // arbitrary bits
      const auto bits = random();
      std::memcpy(to, &bits, size_of(dtype));
    } else {
      const double scale = is_half(dtype) || any % 4 != 0 ? 1.0 : 1e-30;
      encode(dtype, {0, any % 31 == 0 ? -0.0 : normal(random) * scale}, to);
    }
  }
  return bytes;
}

}  // namespace perseus::reference
