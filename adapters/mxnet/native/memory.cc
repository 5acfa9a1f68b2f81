#include "memory.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

namespace perseus::mxnet {

namespace {

constexpr std::size_t kAlignment = 64;

// DLPack's structures before version 1.0, which MXNet uses.
struct DlTensor {
  void* data;
  int device_type;  // 1: CPU
  int device;
  int dimensions;
  std::uint8_t kind;
  std::uint8_t bits;
  std::uint16_t engines;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*free)(DlManagedTensor*);
};

// Keeps the memory alive for one array.
struct Lent {
  DlManagedTensor managed;
  std::vector<std::int64_t> shape;
  std::shared_ptr<void> memory;
};

}  // namespace

Memory::Memory(const PerseusApi& core, std::size_t bytes) {
  std::array<char, 512> message{};
  void* data = nullptr;
  if (void* kept = core.allocate(bytes, &data, message.data(), message.size())) {
    const auto release = core.release;
    data_ = {data, [kept, release](void*) { release(kept); }};
  } else {
    why_private_ = message.data();
    data = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    if (data == nullptr) throw std::bad_alloc();
    data_ = {data, &std::free};
  }
  std::memset(data, 0, bytes);
}

Array Memory::view(const MxnetApi& mxnet, std::size_t offset_bytes, int kind, int bits, const std::int64_t* extents,
                   int dimensions) const {
  auto lent = std::make_unique<Lent>();
  lent->shape.assign(extents, extents + dimensions);
  lent->memory = data_;
  lent->managed = {.tensor = {.data = static_cast<char*>(data_.get()) + offset_bytes,
                              .device_type = 1,
                              .device = 0,
                              .dimensions = dimensions,
                              .kind = static_cast<std::uint8_t>(kind),
                              .bits = static_cast<std::uint8_t>(bits),
                              .engines = 1,
                              .shape = lent->shape.data(),
                              .strides = nullptr,
                              .byte_offset = 0},
                   .context = lent.get(),
                   .free = [](DlManagedTensor* managed) { delete static_cast<Lent*>(managed->context); }};
  Array array = nullptr;
  if (mxnet.from_dlpack(&lent->managed, false, &array) != 0) throw std::runtime_error(mxnet.last_error());
  static_cast<void>(lent.release());  // MXNet frees it
  return array;
}

}  // namespace perseus::mxnet
