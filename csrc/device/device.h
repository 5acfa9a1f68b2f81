// An accelerator as the engine sees it: streams, events, copies and packing, without a vendor's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/reduce.h"
#include "base/shape.h"

namespace perseus {

// A stream by its number, a framework's or the device's own; 0 is the device's default stream.
using Stream = std::uintptr_t;

// A point in a stream's work. Reused once nobody holds it.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

// Memory that is there in the order of the stream it was made on, and goes in the order of the one it was used on last.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual void* data() const = 0;
  // From now on it is read on this stream, which lives as long as the process: a framework's.
  virtual void pass_to(Stream stream) = 0;
};

// Nothing here blocks the caller but `synchronize` and making or freeing memory (not so `allocate_on`). Calls come from
// any thread, whose current device is left as it was found. Failures are thrown as Error with the vendor's own text.
class Device {
 public:
  virtual ~Device() = default;

  virtual int number() const = 0;
  virtual std::string description() const = 0;

  // For libraries that go by the current device: it is this one while the result lives, and then what it was before.
  virtual std::shared_ptr<void> use() = 0;
  // On a thread of ours: for good.
  virtual void activate() = 0;

  // Marks what the stream has been given so far.
  virtual std::shared_ptr<DeviceEvent> record(Stream stream) = 0;
  // What comes on the stream from now on waits for the event.
  virtual void wait(Stream stream, const DeviceEvent& event) = 0;
  virtual bool is_done(const DeviceEvent& event) = 0;
  virtual void synchronize(const DeviceEvent& event) = 0;
  // Whether calls on the stream become part of a graph instead of being carried out.
  virtual bool is_capturing(Stream stream) = 0;

  // A stream of ours, which runs beside all others. Lives as long as somebody holds it.
  virtual std::shared_ptr<const Stream> make_stream() = 0;

  // Device memory, aligned to 256 bytes, and host memory that the device reads and writes by itself. They keep
  // the device. Freed memory must not be in use any more.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  virtual std::shared_ptr<void> allocate_pinned(std::size_t bytes) = 0;

  // Device memory that is made and freed without a wait, where the driver can do so.
  virtual std::shared_ptr<DeviceMemory> allocate_on(const std::shared_ptr<const Stream>& stream, std::size_t bytes) = 0;

  // Zeros, in the order of the stream.
  virtual void zero(Stream stream, void* memory, std::size_t bytes) = 0;

  // Between any two of device and host memory; pageable host memory may block.
  virtual void copy(Stream stream, void* to, const void* from, std::size_t bytes) = 0;

  // Whether pack and unpack scale and convert; else they only copy.
  virtual bool has_kernels() const = 0;
  // Pieces of type `dtype`, times scale.pre, side by side in `buffer` as `wire`. Throws Error(unavailable) where that
  // takes kernels and there are none.
  virtual void pack(Stream stream, const Reduction& reduction, std::span<const Piece> from, void* buffer) = 0;
  // The way back: divided by scale.divisor and times scale.post, as `dtype`. `buffer` may be a single piece's memory.
  virtual void unpack(Stream stream, const Reduction& reduction, const void* buffer, std::span<const Piece> to) = 0;
};

}  // namespace perseus
