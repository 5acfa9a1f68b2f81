#include "simulated_mpi.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "transport/messages/communicator.h"

namespace perseus::scale {

class SimulatedMpi::Rank final : public mpi::Api {
 public:
  Rank(SimulatedMpi& mpi, int number) : mpi_(mpi), number_(number) {}

  mpi::Family family() const override { return mpi::Family::mpich; }
  std::string version() override { return "simulated"; }
  std::string device() override { return ""; }
  bool initialized() override { return true; }
  bool finalized() override { return false; }
  bool initialize(bool) override { return true; }
  bool is_multithreaded() const override { return true; }
  void finalize() override {}
  void abort(int) override {}
  mpi::Comm world() override { return 0; }
  int rank(mpi::Comm comm) override {
    const auto& ranks = group(comm);
    return static_cast<int>(std::ranges::lower_bound(ranks, number_) - ranks.begin());
  }
  int size(mpi::Comm comm) override { return static_cast<int>(group(comm).size()); }
  mpi::Comm duplicate(mpi::Comm comm) override { return make(group(comm), -1); }
  mpi::Comm create(mpi::Comm parent, std::span<const int> ranks, int tag) override {
    std::vector<int> members;
    for (const int rank : ranks) members.push_back(group(parent)[static_cast<std::size_t>(rank)]);
    return make(members, tag);
  }
  mpi::Comm duplicate_as_stream(mpi::Comm comm, int) override { return duplicate(comm); }
  void free(mpi::Comm) override {}
  int last_tag() override { return std::numeric_limits<int>::max(); }

  mpi::Request send(mpi::Comm comm, const void* data, int bytes, int to, int tag) override {
    put(comm, data, bytes, to, tag, nullptr);
    return 0;
  }
  mpi::Request send_until_received(mpi::Comm comm, const void* data, int bytes, int to, int tag) override {
    const int world_rank = group(comm)[static_cast<std::size_t>(to)];
    const auto received = std::make_shared<bool>(false);
    put(comm, data, bytes, to, tag, received);
    const std::scoped_lock lock(mutex_);
    sends_[next_] = {world_rank, received};
    return next_++;
  }
  mpi::Request receive(mpi::Comm comm, void* data, int bytes, int from, int tag) override {
    const Receive receive{{comm, tag}, data, bytes, from};
    {
      // A message that is already there is taken now, so that a probe does not return it again.
      const std::scoped_lock lock(mailbox().mutex);
      if (take(receive)) return 0;
    }
    const std::scoped_lock lock(mutex_);
    receives_[next_] = receive;
    return next_++;
  }
  // A rank waits for a gather and does nothing else meanwhile, so this blocks for its messages. Thousands of threads
  // that poll would take minutes.
  bool test(mpi::Request& request) override {
    if (request == 0) return true;
    std::unique_lock requests(mutex_);
    bool done = false;
    if (const auto sent = sends_.find(request); sent != sends_.end()) {
      const std::scoped_lock lock(mpi_.mailboxes_[static_cast<std::size_t>(sent->second.first)]->mutex);
      done = *sent->second.second;
    } else {
      const auto receive = receives_.at(request);
      requests.unlock();
      std::unique_lock lock(mailbox().mutex);
      if (receive.key.second == static_cast<int>(messages::Tag::gather)) {
        mailbox().arrived.wait(lock, [&] { return done = take(receive); });
      } else {
        done = take(receive);
      }
      lock.unlock();
      requests.lock();
    }
    requests.unlock();
    if (done) abandon(request, false);
    return done;
  }
  bool abandon(mpi::Request& request, bool) override {
    const std::scoped_lock lock(mutex_);
    sends_.erase(request);
    receives_.erase(request);
    request = 0;
    return true;
  }
  bool probe(mpi::Comm comm, mpi::Envelope& envelope) override {
    const std::scoped_lock lock(mailbox().mutex);
    const auto found = mailbox().messages.lower_bound({comm, 0});
    if (found == mailbox().messages.end() || found->first.first != comm) return false;
    const auto& [from, queue] = *found->second.begin();
    envelope = {.from = from, .tag = found->first.second, .bytes = static_cast<int>(queue.front().bytes.size())};
    return true;
  }

 private:
  struct Receive {
    Key key;
    void* data;
    int bytes, from;
  };

  Mailbox& mailbox() const { return *mpi_.mailboxes_[static_cast<std::size_t>(number_)]; }
  const std::vector<int>& group(mpi::Comm comm) const {
    const std::scoped_lock lock(mpi_.mutex_);
    return mpi_.groups_[comm];
  }
  mpi::Comm make(const std::vector<int>& members, int tag) {
    const int before = made_[{members, tag}]++;
    const std::scoped_lock lock(mpi_.mutex_);
    const auto [made, is_new] = mpi_.made_.try_emplace({members, tag, before}, mpi_.groups_.size());
    if (is_new) mpi_.groups_.push_back(members);
    return made->second;
  }
  void put(mpi::Comm comm, const void* data, int bytes, int to, int tag, std::shared_ptr<bool> received) {
    const int world_rank = group(comm)[static_cast<std::size_t>(to)];
    mpi_.costs_.add_messages(number_, world_rank, 1, static_cast<std::size_t>(bytes));
    auto& target = *mpi_.mailboxes_[static_cast<std::size_t>(world_rank)];
    {
      const std::scoped_lock lock(target.mutex);
      target.messages[{comm, tag}][rank(comm)].push_back(
          {{static_cast<const char*>(data), static_cast<std::size_t>(bytes)}, std::move(received)});
    }
    target.arrived.notify_one();
  }
  // Takes the message for a receive. The caller holds the mailbox's mutex.
  bool take(const Receive& receive) {
    auto& messages = mailbox().messages;
    const auto queues = messages.find(receive.key);
    if (queues == messages.end()) return false;
    const auto queue = queues->second.find(receive.from);
    if (queue == queues->second.end()) return false;
    auto& message = queue->second.front();
    std::memcpy(receive.data, message.bytes.data(), message.bytes.size());
    if (message.received) *message.received = true;
    queue->second.pop_front();
    if (queue->second.empty()) queues->second.erase(queue);
    if (queues->second.empty()) messages.erase(queues);
    return true;
  }

  SimulatedMpi& mpi_;
  int number_;
  std::mutex mutex_;  // guards next_, receives_ and sends_
  mpi::Request next_ = 1;
  std::map<mpi::Request, Receive> receives_;
  std::map<mpi::Request, std::pair<int, std::shared_ptr<bool>>> sends_;  // the receiver, and whether it has received
  std::map<std::pair<std::vector<int>, int>, int> made_;                 // communicators so far, by ranks and tag
};

SimulatedMpi::SimulatedMpi(Costs& costs) : costs_(costs) {
  for (int rank = 0; rank < costs.size(); ++rank) {
    mailboxes_.push_back(std::make_unique<Mailbox>());
    apis_.push_back(std::make_unique<Rank>(*this, rank));
  }
  std::vector<int> world(static_cast<std::size_t>(costs.size()));
  std::iota(world.begin(), world.end(), 0);
  add_group(std::move(world));
}

mpi::Comm SimulatedMpi::add_group(std::vector<int> ranks) {
  const std::scoped_lock lock(mutex_);
  groups_.push_back(std::move(ranks));
  return groups_.size() - 1;
}

}  // namespace perseus::scale
