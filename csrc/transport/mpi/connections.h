// The communicators of a job's ranks. All groups share them, and tags tell the groups apart.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/wait/doorbell.h"
#include "transport/fabric.h"
#include "transport/messages/network.h"
#include "transport/mpi/library/api.h"
#include "transport/mpi/send_guard.h"

namespace perseus::mpi {

// The numbers of a rank's groups, as a set of bits that ranks exchange.
using Numbers = std::string;

// Returns a number for each group that no other group of its members has: the lowest one. `used` has the numbers of
// each rank. Ranks with the same arguments get the same numbers. Throws Error if a member is missing.
std::vector<int> choose_numbers(std::span<const Group> groups, std::map<int, Numbers> used);

// Thread-safe.
class Connections {
 public:
  // Takes ownership of communicators of the same ranks, which return their errors. The first one carries the control
  // messages, the others are the streams. A single one is a stream. `sends` guards the sends, if given.
  Connections(Api& api, std::vector<Comm> comms, SendGuard* sends = nullptr);
  // Frees the communicators, unless a network was not closed, so that messages may still arrive.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  Api& api() const { return api_; }
  SendGuard* sends() const { return sends_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int streams() const { return comms_.size() == 1 ? 1 : static_cast<int>(comms_.size()) - 1; }
  Comm stream(int number) const {
    return comms_.size() == 1 ? comms_.front() : comms_[1 + static_cast<std::size_t>(number % streams())];
  }

  // A rank can be in this number of groups at a time.
  int most_groups() const { return most_groups_; }
  // Returns the numbers of this rank's groups that are not closed.
  Numbers numbers() const;

  struct Inbox {
    std::deque<messages::Arrival> messages;
    Doorbell* doorbell = nullptr;       // null: none
    std::atomic<bool> has_news{false};  // also read without the mutex
  };

  // Receives the control messages that have arrived, unless another thread does so. The caller takes those of `own`
  // next: its doorbell is not notified, which would wake a thread for nothing.
  void poll(const Inbox* own = nullptr);

 private:
  friend class GroupNetwork;

  Inbox& inbox(int number);
  void open(int number);
  void close(int number);
  Comm control() const { return comms_.front(); }

  Api& api_;
  std::vector<Comm> comms_;
  SendGuard* sends_;
  int rank_, size_, most_groups_;
  mutable std::mutex mutex_;      // guards the rest
  std::map<int, int> networks_;   // by number
  std::mutex inboxes_mutex_;      // guards the rest
  std::map<int, Inbox> inboxes_;  // by number
};

// Point-to-point messages of the ascending ranks `members`, of which this rank is one. `number` is the same on all of
// them.
std::unique_ptr<messages::PolledNetwork> make_network(std::shared_ptr<Connections> connections,
                                                      std::vector<int> members, int number);

// The same for all ranks of the communicators, which are those of a Connections.
std::unique_ptr<messages::PolledNetwork> make_network(Api& api, std::vector<Comm> comms, SendGuard* sends = nullptr);

}  // namespace perseus::mpi
