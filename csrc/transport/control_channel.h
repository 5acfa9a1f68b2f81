// Small messages between the ranks of one group: what negotiation speaks through.
#pragma once

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

  // The next message that has arrived, if any.
  virtual bool receive(ControlMessage& message) = 0;

  // Rung when a message arrives, and by this process's own threads. In shared memory where peers can reach it.
  virtual Doorbell& doorbell() = 0;

  // True where messages arrive without a ring (MPI): the engine then looks again from time to time.
  virtual bool needs_polling() const = 0;
};

}  // namespace perseus
