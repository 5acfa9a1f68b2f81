// Small messages between the ranks of one group: what negotiation speaks through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/doorbell.h"

namespace perseus {

struct ControlMessage {
  int from = 0;  // rank within the group
  std::string bytes;
};

// Used by one thread at a time, except for the doorbell. Messages between two ranks keep their order.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Never blocks: what does not fit yet is kept and goes out with a later send or receive.
  virtual void send(int to, std::string bytes) = 0;

  // True while something sent to `to` is kept back and needs a later call to go out.
  virtual bool keeps_for([[maybe_unused]] int to) const { return false; }

  // The same for any rank: somebody has to look here often until it has gone.
  virtual bool keeps_any() const { return false; }

  // The next message that has arrived, if any.
  virtual bool receive(ControlMessage& message) = 0;

  // Memory in which `to` can read what is too large for a message: a copy of the bytes, and its place; nothing where
  // there is none. It stays until take_back().
  virtual std::optional<std::uint64_t> lay_out([[maybe_unused]] int to, [[maybe_unused]] const void* data,
                                               [[maybe_unused]] std::size_t bytes) {
    return std::nullopt;
  }
  virtual void take_back([[maybe_unused]] std::uint64_t place) {}
  // Where bytes that a peer has laid out are mapped here; null where they are not.
  virtual const void* find([[maybe_unused]] int from, [[maybe_unused]] std::uint64_t place,
                           [[maybe_unused]] std::size_t bytes) {
    return nullptr;
  }

  // Whether messages of ranks that are no neighbours in the tree are waited for.
  virtual void expect_anybody([[maybe_unused]] bool expected) {}

  // Rung when a message arrives, and by this process's own threads. In shared memory where peers can reach it.
  virtual Doorbell& doorbell() = 0;

  // True where messages arrive without a ring (MPI): the engine then looks again from time to time.
  virtual bool needs_polling() const = 0;
};

}  // namespace perseus
