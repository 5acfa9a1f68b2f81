// Carries control messages and small point-to-point messages between the ranks of one group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/wait/doorbell.h"

namespace perseus {

struct ControlMessage {
  int from = 0;  // rank within the group
  std::string bytes;
};

// The messages of one group. One thread at a time uses a channel, except for its doorbell. Messages from one rank to
// another arrive in the order of their sends.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Sends a message without blocking. The channel keeps bytes that do not fit yet; a later send() or receive() sends
  // them.
  virtual void send(int to, std::string bytes) = 0;

  // Returns true while the channel keeps bytes for `to`, which need a later call.
  virtual bool keeps_for([[maybe_unused]] int to) const { return false; }

  // Returns true while the channel keeps bytes for any rank; the engine then polls it.
  virtual bool keeps_any() const { return false; }

  // Takes the next message that has arrived; returns false if there is none.
  virtual bool receive(ControlMessage& message) = 0;

  // Copies bytes that are too large for a message into memory that `to` can read, and returns their place. Returns
  // nothing if there is no such memory. The copy stays until take_back().
  virtual std::optional<std::uint64_t> lay_out([[maybe_unused]] int to, [[maybe_unused]] const void* data,
                                               [[maybe_unused]] std::size_t bytes) {
    return std::nullopt;
  }
  virtual void take_back([[maybe_unused]] std::uint64_t place) {}
  // Returns the address at which bytes that a peer has laid out are mapped here, or null if they are not.
  virtual const void* find([[maybe_unused]] int from, [[maybe_unused]] std::uint64_t place,
                           [[maybe_unused]] std::size_t bytes) {
    return nullptr;
  }

  // Also polls for messages from ranks that are not tree neighbours, if `expected`.
  virtual void expect_anybody([[maybe_unused]] bool expected) {}

  // The doorbell that arriving messages and this process's threads notify. It is in shared memory if peers can reach
  // it.
  virtual Doorbell& doorbell() = 0;

  // Makes arriving messages notify another doorbell, if they notify any.
  virtual void notify(Doorbell& /*doorbell*/) {}

  // Returns true if messages notify the doorbell up to 100 ms after they have arrived, as over MPI, unless receive() is
  // called. The engine then polls while it expects something, and for a short time afterwards.
  virtual bool needs_polling() const = 0;

  // Returns true if bytes that have been sent may leave this rank only in a later receive(), also those of the group's
  // transport, as over MPI; the engine then calls it a few times after work.
  virtual bool needs_progress() const { return needs_polling(); }
};

}  // namespace perseus
