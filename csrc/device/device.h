// Defines the interface to an accelerator, independent of its vendor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/reduce.h"
#include "base/shape.h"

namespace perseus {

// A device stream, of a framework or of this library; 0 is the device's default stream.
using Stream = std::uintptr_t;

// A point in a stream's work. The event is reused after it is released.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Device memory that is allocated in the order of one stream and freed in the order of the stream that used it last.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* data() const = 0;
  // States that this stream of a framework reads the memory from now on. The stream lives as long as the process.
  virtual void pass_to(Stream stream) = 0;
};

// One accelerator. Only synchronize(), drain() and the allocation of pinned memory block the caller. Any thread may
// call; its current device stays as it is. Failures are thrown as Error with the vendor's own text.
class Device {
 public:
  virtual ~Device() = default;

  virtual int number() const = 0;
  virtual std::string description() const = 0;

  // Makes this device current on the calling thread until the result is released, for libraries that use the current
  // device.
  virtual std::shared_ptr<void> use() = 0;
  // Makes this device current on a thread of this library.
  virtual void activate() = 0;

  // Records an event after the work that is queued on the stream now.
  virtual std::shared_ptr<DeviceEvent> record(Stream stream) = 0;
  // Makes later work on the stream wait for the event.
  virtual void wait(Stream stream, const DeviceEvent& event) = 0;
  virtual bool is_done(const DeviceEvent& event) = 0;
  virtual void synchronize(const DeviceEvent& event) = 0;
  // Blocks until the device has executed everything that this process has queued on it, on any stream.
  virtual void drain() = 0;
  // Returns true if calls on the stream are captured into a graph instead of being executed.
  virtual bool is_capturing(Stream stream) = 0;

  // Makes a stream that runs concurrently with all others. It is destroyed with the last reference.
  virtual std::shared_ptr<const Stream> make_stream() = 0;

  // Allocates pinned host memory, which keeps a reference to the device. The memory must not be in use when it is
  // freed, because it is used again.
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes) = 0;

  // Allocates device memory, aligned to 256 bytes, which keeps a reference to the device. Neither the allocation nor
  // the release waits for the device.
  virtual std::shared_ptr<DeviceMemory> allocate_on(const std::shared_ptr<const Stream>& stream, std::size_t bytes) = 0;

  // Fills memory with zeros in the order of the stream.
  virtual void zero(Stream stream, void* memory, std::size_t bytes) = 0;

  // Copies between any device and host memory. The call may block for pageable host memory.
  virtual void copy(Stream stream, void* to, const void* from, std::size_t bytes) = 0;

  // Returns true if the device is connected to a switch that adds (NVLink SHARP).
  virtual bool has_multicast() const = 0;

  // Returns true if pack() and unpack() can scale and convert; otherwise they only copy.
  virtual bool has_kernels() const = 0;
  // Multiplies pieces (reduction.dtype) by scale.pre, and packs them into `buffer` as reduction.wire_dtype, in the
  // layout of packed_count(). Throws Error(unavailable) if that needs kernels and there are none.
  virtual void pack(Stream stream, const Reduction& reduction, std::span<const Piece> from, void* buffer) = 0;
  // Divides the elements of `buffer` by scale.divisor, multiplies them by scale.post, and unpacks them into pieces
  // (reduction.dtype). `buffer` may be the memory of a single piece.
  virtual void unpack(Stream stream, const Reduction& reduction, const void* buffer, std::span<const Piece> to) = 0;
};

// Each piece begins at a multiple of this number of bytes in a packed buffer, so that kernels move vectors after a
// piece of odd size, too.
inline constexpr std::int64_t kPackAlignment = 16;

// Returns `count` elements, rounded up to that multiple.
constexpr std::int64_t aligned_count(std::int64_t count, std::size_t element_bytes) {
  const auto step = std::max<std::int64_t>(1, kPackAlignment / static_cast<std::int64_t>(element_bytes));
  return (count + step - 1) / step * step;
}

// Returns the elements of the packed buffer. There is nothing after the last piece, and no place for empty pieces.
std::int64_t packed_count(const Reduction& reduction, std::span<const Piece> pieces);

// Opens an accelerator of this machine; `number` is the framework's number. Throws Error that says what to do if there
// is no such device or no driver.
std::shared_ptr<Device> open_device(int number);

// Returns the number of accelerators that this process sees. Throws Error if there is no driver.
int device_count();

// Returns true if an accelerator's driver is installed. Does not start it, so that forked processes can use it.
bool has_driver();

}  // namespace perseus
