// The memory that a communicator's buffers lie in, and the stream on which a library works there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/reduce.h"
#include "transport/transport.h"

namespace perseus::xccl {

// What is asked for happens in the order of one stream, and is done at some time after the call has returned. On host
// memory there is no stream: it is done then. All throw Error.
class Device {
 public:
  virtual ~Device() = default;

  // For texts: "host memory", "GPU 0".
  virtual std::string name() const = 0;

  // Handed to the library with every call; null on host memory.
  virtual void* stream() const = 0;

  // Makes the device current on the calling thread: the library's calls may come on a thread of their own.
  virtual void activate() {}

  // Staging memory. It is released only when the stream has done with it.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;

  // All elements of `from` (reduction.dtype) times scale.pre, converted to reduction.wire, into consecutive memory.
  virtual void pack(const Reduction& reduction, Pieces from, void* to) = 0;

  // What was reduced (reduction.wire, consecutive) divided by scale.divisor, times scale.post, converted to
  // reduction.dtype, into all elements of `to`. `from` may be the memory of a single piece.
  virtual void unpack(const Reduction& reduction, const void* from, Pieces to) = 0;

  // Whether it can add contributions up itself: then nothing has to be refused that a library cannot reduce.
  virtual bool reduces() const = 0;

  // Combines contributions that were packed, in their order, into `to` (reduction.wire); divisor and post are applied.
  virtual void reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) = 0;

  // Whether all that was asked for is done, the library's part too.
  virtual bool done() = 0;
};

}  // namespace perseus::xccl
