#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/error.h"
#include "device/host/kernels.h"
#include "transport/scattered.h"
#include "transport/xccl/transport.h"

namespace perseus::xccl {
namespace {

constexpr std::int64_t kChunkBytes = std::int64_t{64} << 20;  // most bytes staged at once
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;  // up to this size from all peers, gathering is faster
constexpr std::int64_t kSliceGrain = 64;                      // slices are multiples of this number of elements

std::int64_t width_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }
bool is_16_bit(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

std::optional<DataType> type_of(DType dtype) {
  switch (dtype) {
    case DType::uint8:
    case DType::boolean: return DataType::uint8;
    case DType::int8: return DataType::int8;
    case DType::int32: return DataType::int32;
    case DType::int64: return DataType::int64;
    case DType::float16: return DataType::float16;
    case DType::bfloat16: return DataType::bfloat16;
    case DType::float32: return DataType::float32;
    case DType::float64: return DataType::float64;
    case DType::int16:
    case DType::uint16: break;
  }
  return std::nullopt;
}

std::optional<Op> op_of(ReduceOp op, bool of_booleans) {
  switch (op) {
    case ReduceOp::sum: return of_booleans ? kMax : kSum;
    case ReduceOp::product: return of_booleans ? kMin : kProduct;
    case ReduceOp::max: return kMax;
    case ReduceOp::min: return kMin;
    case ReduceOp::bor: return of_booleans ? std::optional(kMax) : std::nullopt;
    case ReduceOp::band: return of_booleans ? std::optional(kMin) : std::nullopt;
    case ReduceOp::bxor: break;
  }
  return std::nullopt;
}

// The library's operation for a reduction.
struct Native {
  DataType type;
  Op op;
  Reduction around;  // the work that remains before and after it

  // Returns true if the library can read the input directly.
  bool takes_input() const { return around.wire_dtype == around.dtype && around.scale.pre == 1.0; }
  bool gives_output() const {
    return around.wire_dtype == around.dtype && around.scale.post == 1.0 && around.scale.divisor == 1;
  }
};

// Returns nothing if the library does not have the reduction. Also returns nothing if its result differs from that
// which transport.h specifies and the device can compute it: 16-bit floats that are added in 16 bits, and a minimum
// with NaNs, which is NaN here.
std::optional<Native> find_native(const Library& library, const Device& device, const Reduction& reduction) {
  const bool of_booleans = reduction.wire_dtype == DType::boolean;
  const auto type = type_of(reduction.wire_dtype);
  const auto op = op_of(reduction.op, of_booleans);
  if (!type || !op) return std::nullopt;
  if (device.reduces()) {
    const bool extreme = reduction.op == ReduceOp::min || reduction.op == ReduceOp::max;
    if (of_booleans || (extreme && is_floating(reduction.wire_dtype))) return std::nullopt;
    if (is_16_bit(reduction.wire_dtype) && !library.traits.adds_16_bits) return std::nullopt;
  }
  Native native{*type, *op, reduction};
  if (is_16_bit(reduction.wire_dtype) && reduction.op == ReduceOp::sum) {
    const auto& scale = reduction.scale;
    native.around.scale = {.pre = scale.pre * scale.post / static_cast<double>(scale.divisor)};
  }
  return native;
}

// Moves the factors into the library's operation if that saves a pass over the data. Converted data are packed anyway,
// and scaled then: a value that only fits into the wire dtype after scaling must not become infinite before. With one
// rank, NCCL before 2.29.7 does not scale the last elements of a tensor (its issue 1950).
void scale_in_library(const Context& context, Native& native) {
  const auto& scale = native.around.scale;
  if (context.device().reduces() || context.device().wants_plain_sums() ||
      context.through.library().call.red_op_create_pre_mul_sum == nullptr)
    return;
  if (native.op != kSum || !is_floating(native.around.wire_dtype) || scale.is_identity()) return;
  if (native.around.wire_dtype != native.around.dtype || context.through.size() == 1) return;
  const double factor = scale.pre * scale.post / static_cast<double>(scale.divisor);
  std::array<std::byte, sizeof(double)> scalar{};
  const auto convert = [&](DType from, const void* value) {
    host::pack({.dtype = from, .wire_dtype = native.around.wire_dtype, .op = ReduceOp::sum, .scale = {}}, value,
               scalar.data(), 1, host::Store::cached);
  };
  const auto narrow = static_cast<float>(factor);
  if (native.around.wire_dtype == DType::float64) {
    convert(DType::float64, &factor);
  } else {
    convert(DType::float32, &narrow);
  }
  native.op = context.through.pre_mul_sum(native.type, factor, scalar.data());
  native.around.scale = {};
}

Status no_native(const Library& library, const Device& device, const Reduction& reduction) {
  const auto what = std::string(name_of(reduction.op)) + " of " + std::string(name_of(reduction.wire_dtype));
  return {ErrorKind::invalid_argument,
          library.title() + " has no " + what + " on " + device.name() +
              "; convert the tensor, for example from int16 to int32, or move it to the CPU first"};
}

Native native_or_throw(const Context& context, const Reduction& reduction) {
  auto native = find_native(context.through.library(), context.device(), reduction);
  if (!native) {
    const auto reason = no_native(context.through.library(), context.device(), reduction);
    throw Error(reason.kind(), reason.text());
  }
  scale_in_library(context, *native);
  return *native;
}

// Reduces `count` elements that the library can process in one call or that are staged at once.
void allreduce_natively(const Context& context, const Native& native, const Scattered& in, const Scattered& out,
                        std::int64_t begin, std::int64_t count) {
  const auto& around = native.around;
  // The pieces have the same sizes on all ranks, so the packed buffers have the same layout.
  const auto packed = context.device().packed_count(around, out.cut(begin, count));
  const auto bytes = size(packed * width_of(around.wire_dtype));
  const auto place = [&](const Scattered& memory) -> std::byte* {
    const auto pieces = memory.cut(begin, count);
    return pieces.size() == 1 && around.wire_dtype == around.dtype ? static_cast<std::byte*>(pieces.front().data)
                                                                   : nullptr;
  };
  auto* result = place(out);
  if (result == nullptr) result = context.staging.get(Staging::packed, bytes);
  const void* from = native.takes_input() ? place(in) : nullptr;
  if (from == nullptr) {
    context.device().pack(around, in.cut(begin, count), result);
    from = result;
  }
  context.through.run("AllReduce", [=, type = native.type, op = native.op, stream = context.device().stream()](
                                       const Functions& call, Comm comm) {
    return call.all_reduce(from, result, size(packed), type, op, comm, stream);
  });
  if (place(out) != nullptr && native.gives_output()) return;
  context.device().unpack(around, result, out.cut(begin, count));
}

// Returns the reduction for packing contributions that the device combines; the combining applies the later factors.
Reduction without_scale(Reduction reduction) {
  reduction.scale = {};
  return reduction;
}

// Combines one contribution of each rank. The contributions are `stride` bytes apart.
void combine(const Context& context, const Reduction& reduction, const std::byte* contributions, std::size_t stride,
             void* to, std::int64_t count) {
  std::vector<const void*> from;
  from.reserve(size(context.through.size()));
  for (std::size_t r = 0; r < size(context.through.size()); ++r) from.push_back(contributions + r * stride);
  context.device().reduce(reduction, from, to, count);
}

// Exchanges the data as bytes over the library and adds on the device. Each rank adds a slice, or all of a small
// tensor.
void allreduce_by_device(const Context& context, const Reduction& reduction, const Scattered& in, const Scattered& out,
                         std::int64_t begin, std::int64_t count) {
  const auto width = width_of(reduction.wire_dtype);
  const std::int64_t ranks = context.through.size();
  const bool small = count * width * (ranks - 1) <= kSmallBytes;
  const auto slice = small ? count : ((count + ranks - 1) / ranks + kSliceGrain - 1) / kSliceGrain * kSliceGrain;
  const auto slice_bytes = slice * width;
  const auto all = size(slice_bytes * (small ? 1 : ranks));
  auto* packed = context.staging.get(Staging::packed, all);
  auto* arrived = context.staging.get(Staging::received, size(slice_bytes * ranks));
  auto* result = context.staging.get(Staging::result, all);
  context.device().pack(reduction, in.cut(begin, count), packed);
  if (small) {
    const std::vector<std::int64_t> each(size(ranks), slice_bytes);
    gather(context, packed, arrived, each);
    combine(context, reduction, arrived, size(slice_bytes), result, count);
  } else {
    exchange_equal(context, packed, arrived, slice_bytes);
    const auto own = std::clamp<std::int64_t>(count - context.through.rank() * slice, 0, slice);
    auto* mine = result + size(context.through.rank() * slice_bytes);
    combine(context, reduction, arrived, size(slice_bytes), mine, own);
    const std::vector<std::int64_t> each(size(ranks), slice_bytes);
    gather(context, mine, result, each);
  }
  context.device().unpack(without_scale(reduction), result, out.cut(begin, count));
}

Piece piece(const void* memory, std::int64_t at, std::int64_t count, DType dtype) {
  return {const_cast<std::byte*>(static_cast<const std::byte*>(memory)) + size(at * width_of(dtype)), count};
}

// Reduces each rank's part to this rank, in one group of calls if the library has groups.
void reduce_parts(const Context& context, const Native& native, const std::byte* from, std::byte* to, Counts counts) {
  const auto width = width_of(native.around.wire_dtype);
  const auto most = std::max<std::int64_t>(1, context.through.library().traits.most_bytes / width);
  const auto longest = *std::max_element(counts.begin(), counts.end());
  // Libraries may use the memory for the result also on other ranks.
  auto* scratch = context.staging.get(Staging::received, size(std::min(longest, most) * width));
  Communicator::Group group(context.through);
  for (int root = 0; root < context.through.size(); ++root) {
    const auto count = counts[size(root)];
    for (std::int64_t at = 0; at < count; at += most) {
      auto* result = root == context.through.rank() ? to + at * width : scratch;
      context.through.run("Reduce", [=, type = native.type, op = native.op, stream = context.device().stream()](
                                        const Functions& call, Comm comm) {
        return call.reduce(from + at * width, result, size(std::min(most, count - at)), type, op, root, comm, stream);
      });
    }
    from += count * width;
  }
  group.end();
}

void scatter_natively(const Context& context, const Native& native, const void* in, void* out, Counts counts) {
  const auto& around = native.around;
  const auto width = width_of(around.wire_dtype);
  const auto total = sum(counts);
  const auto mine = counts[size(context.through.rank())];
  const auto* from = static_cast<const std::byte*>(in);
  if (!native.takes_input()) {
    auto* packed = context.staging.get(Staging::packed, size(total * width));
    const auto whole = piece(in, 0, total, around.dtype);
    context.device().pack(around, {&whole, 1}, packed);
    from = packed;
  }
  // If the operation is in place, the result would overwrite data that is still to be sent.
  const bool direct = around.wire_dtype == around.dtype && in != out;
  auto* result = direct ? static_cast<std::byte*>(out) : context.staging.get(Staging::result, size(mine * width));
  const bool equal = std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  if (equal && total * width <= context.through.library().traits.most_bytes) {
    context.through.run("ReduceScatter", [=, type = native.type, op = native.op, stream = context.device().stream()](
                                             const Functions& call, Comm comm) {
      return call.reduce_scatter(from, result, size(mine), type, op, comm, stream);
    });
  } else {
    reduce_parts(context, native, from, result, counts);
  }
  if (direct && native.gives_output()) return;
  const auto own = piece(out, 0, mine, around.dtype);
  context.device().unpack(around, result, {&own, 1});
}

// Processes segments with equally many elements for each rank.
void scatter_by_device(const Context& context, const Reduction& reduction, const void* in, void* out, Counts counts) {
  const auto width = width_of(reduction.wire_dtype);
  const auto ranks = static_cast<std::int64_t>(counts.size());
  const auto longest = *std::max_element(counts.begin(), counts.end());
  const auto segment = std::min(longest, std::max<std::int64_t>(1, kChunkBytes / ranks / width));
  const auto begins = offsets_of(counts);
  const auto mine = counts[size(context.through.rank())];
  auto* packed = context.staging.get(Staging::packed, size(segment * ranks * width));
  auto* arrived = context.staging.get(Staging::received, size(segment * ranks * width));
  auto* result = context.staging.get(Staging::result, size(mine * width));
  for (std::int64_t at = 0; at < longest; at += segment) {
    for (std::size_t r = 0; r < counts.size(); ++r) {
      const auto count = std::clamp<std::int64_t>(counts[r] - at, 0, segment);
      const auto part = piece(in, begins[r] + at, count, reduction.dtype);
      context.device().pack(reduction, {&part, 1}, packed + r * size(segment * width));
    }
    exchange_equal(context, packed, arrived, segment * width);
    const auto own = std::clamp<std::int64_t>(mine - at, 0, segment);
    combine(context, reduction, arrived, size(segment * width), result + at * width, own);
  }
  const auto own = piece(out, 0, mine, reduction.dtype);
  context.device().unpack(without_scale(reduction), result, {&own, 1});
}

}  // namespace

Status XcclTransport::supports(const Reduction& reduction) const {
  const auto& library = communicator_->library();
  const auto& device = communicator_->device();
  if (device.reduces() || find_native(library, device, reduction)) return {};
  return no_native(library, device, reduction);
}

Status XcclTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  return as_status([&](const Context& context) {
    const auto width = size_of(reduction.dtype);
    const Scattered from(in, width), to(out, width);
    if (from.count() == 0) return;
    const auto& library = context.through.library();
    const auto& device = context.device();
    const bool natively = find_native(library, device, reduction).has_value() || !device.reduces();
    const auto each = [&](std::int64_t chunk_bytes, const auto& work) {
      const auto chunk =
          std::max<std::int64_t>(kSliceGrain, chunk_bytes / width_of(reduction.wire_dtype) / kSliceGrain * kSliceGrain);
      const auto grain = device.aligns_pieces() ? kSliceGrain : 1;
      for (std::int64_t begin = 0, end = 0; begin < from.count(); begin = end) {
        end = to.chunk_end(begin, chunk, grain);
        work(begin, end - begin);
      }
    };
    if (!natively) {
      each(kChunkBytes,
           [&](auto begin, auto count) { allreduce_by_device(context, reduction, from, to, begin, count); });
      return;
    }
    const auto native = native_or_throw(context, reduction);
    const bool staged = to.contiguous() == nullptr || reduction.wire_dtype != reduction.dtype;
    const auto most = library.traits.most_bytes;
    each(staged ? std::min(kChunkBytes, most) : most,
         [&](auto begin, auto count) { allreduce_natively(context, native, from, to, begin, count); });
  });
}

Status XcclTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  return as_status([&](const Context& context) {
    if (std::all_of(counts.begin(), counts.end(), [](auto count) { return count == 0; })) return;
    if (context.device().reduces() && !find_native(context.through.library(), context.device(), reduction)) {
      scatter_by_device(context, reduction, in, out, counts);
    } else {
      scatter_natively(context, native_or_throw(context, reduction), in, out, counts);
    }
  });
}

}  // namespace perseus::xccl
