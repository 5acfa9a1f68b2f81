#include "transport/xccl/device.h"

#include <cstdlib>

#include "base/error.h"
#include "device/host/kernels.h"

namespace perseus::xccl {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

void* HostDevice::allocate(std::size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) {
    throw Error(ErrorKind::unavailable, "collective over host memory: this rank has no " + std::to_string(bytes) +
                                            " bytes left for staging; use smaller tensors or free memory");
  }
  return memory;
}

void HostDevice::release(void* memory) { std::free(memory); }

void HostDevice::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) host::copy(to, from, bytes, host::Store::cached);
}

void HostDevice::pack(const Reduction& reduction, Pieces from, void* to) {
  auto* at = static_cast<std::byte*>(to);
  for (const auto& piece : from) {
    if (piece.count > 0) host::pack(reduction, piece.data, at, piece.count, host::Store::cached);
    at += static_cast<std::size_t>(piece.count) * size_of(reduction.wire_dtype);
  }
}

// Reduces one contribution; only the factors after the sum apply.
void HostDevice::unpack(const Reduction& reduction, const void* from, Pieces to) {
  const auto* at = static_cast<const std::byte*>(from);
  for (const auto& piece : to) {
    const void* const contribution = at;
    host::reduce_packed(reduction, {&contribution, 1}, piece.data, false, piece.count);
    at += static_cast<std::size_t>(piece.count) * size_of(reduction.wire_dtype);
  }
}

void HostDevice::reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) {
  host::reduce_packed(reduction, from, to, true, count);
}

}  // namespace perseus::xccl
