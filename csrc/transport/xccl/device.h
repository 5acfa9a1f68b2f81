// Defines the interface to the memory of a communicator's buffers and the device stream on which a library works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/reduce.h"
#include "transport/transport.h"

namespace perseus::xccl {

// A device and its stream. Calls queue work in the order of the stream and may return before it is done. Host memory
// has no stream, so the work is done when a call returns. All functions throw Error.
class Device {
 public:
  virtual ~Device() = default;

  // Returns the name for texts, such as "host memory" or "GPU 0".
  virtual std::string name() const = 0;

  // Returns the stream to pass to the library with every call; null for host memory.
  virtual void* stream() const = 0;

  // Makes the device current on a thread of this library.
  virtual void activate() {}
  // Makes the device current on the calling thread until the result is released.
  virtual std::shared_ptr<void> use() { return nullptr; }

  // Allocate and free staging memory. It is freed only after the work on the stream that uses it.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  // Returns true if pack() and unpack() can scale and convert; otherwise they only copy. All ranks give the same
  // answer.
  virtual bool has_kernels() const { return true; }

  // Returns the elements of memory that pack() fills; a device may leave gaps between pieces. It is at least the number
  // of elements, and that number for a single piece.
  virtual std::int64_t packed_count(const Reduction& reduction, Pieces pieces) const {
    static_cast<void>(reduction);
    std::int64_t count = 0;
    for (const auto& piece : pieces) count += piece.count;
    return count;
  }

  // Returns true if pack() leaves gaps, so that each piece begins at aligned memory. The pieces then have the same
  // sizes on all ranks.
  virtual bool aligns_pieces() const { return false; }

  // Multiplies all elements of `from` (reduction.dtype) by scale.pre, converts them to reduction.wire_dtype and writes
  // them to packed_count() elements of memory.
  virtual void pack(const Reduction& reduction, Pieces from, void* to) = 0;

  // Divides reduced packed elements (reduction.wire_dtype) by scale.divisor, multiplies them by scale.post,
  // converts them to reduction.dtype and writes them to all elements of `to`. `from` may be the memory of a single
  // piece.
  virtual void unpack(const Reduction& reduction, const void* from, Pieces to) = 0;

  // Returns true if the device can combine contributions itself. It then also supports reductions that the library
  // lacks.
  virtual bool reduces() const = 0;

  // Combines packed contributions in their order into `to` (reduction.wire_dtype), and applies divisor and post.
  virtual void reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) = 0;

  // Returns true if the library is to be asked for plain sums, because a switch adds those alone; pack() and unpack()
  // then scale. All ranks give the same answer.
  virtual bool wants_plain_sums() const { return false; }

  // Returns true if all queued work is done, including the library's.
  virtual bool done() = 0;
  // Blocks until all queued work is done, or the device has failed.
  virtual void finish() {}
};

// Host memory, where the processor does all work without a stream.
class HostDevice final : public Device {
 public:
  std::string name() const override { return "host memory"; }
  void* stream() const override { return nullptr; }
  void* allocate(std::size_t bytes) override;
  void release(void* memory) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void pack(const Reduction& reduction, Pieces from, void* to) override;
  void unpack(const Reduction& reduction, const void* from, Pieces to) override;
  bool reduces() const override { return true; }
  void reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) override;
  bool done() override { return true; }
};

}  // namespace perseus::xccl
