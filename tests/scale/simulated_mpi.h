// An MPI whose ranks are in one process, up to thousands of them. It counts what they send.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cost.h"
#include "transport/mpi/library/api.h"

namespace perseus::scale {

class SimulatedMpi {
 public:
  // Adds messages to `costs`, which must outlive this.
  explicit SimulatedMpi(Costs& costs);

  // Returns one rank's view. Thread-safe, except for new communicators.
  mpi::Api& api(int rank) { return *apis_[static_cast<std::size_t>(rank)]; }

  // Returns a new communicator of these ascending ranks.
  mpi::Comm add_group(std::vector<int> ranks);

 private:
  class Rank;

  struct Message {
    std::string bytes;
    std::shared_ptr<bool> received;  // guarded by the receiver's mutex
  };
  using Key = std::pair<mpi::Comm, int>;              // communicator and tag
  using Queues = std::map<int, std::deque<Message>>;  // by the sender's rank in the communicator
  struct Mailbox {
    std::mutex mutex;  // guards messages
    std::condition_variable arrived;
    std::map<Key, Queues> messages;
  };

  Costs& costs_;
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  std::vector<std::unique_ptr<mpi::Api>> apis_;
  std::mutex mutex_;                     // guards groups_ and made_
  std::deque<std::vector<int>> groups_;  // the world ranks of each communicator
  // Communicators that several ranks make together: by their ranks, the tag, and how many the rank has made so.
  std::map<std::tuple<std::vector<int>, int, int>, mpi::Comm> made_;
};

}  // namespace perseus::scale
