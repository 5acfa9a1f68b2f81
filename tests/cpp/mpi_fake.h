// A fake libmpi whose ranks are threads, with point-to-point messages in memory.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/fabric.h"
#include "transport/mpi/library/api.h"

namespace perseus::testing {

// The messages of one communicator and its streams, seen by all its ranks.
class FakeNetwork {
 public:
  // `received` becomes true when the message is taken.
  void put(mpi::Comm comm, int from, int to, int tag, std::string bytes,
           std::shared_ptr<std::atomic<bool>> received = nullptr);
  bool take(mpi::Comm comm, int from, int to, int tag, std::string& bytes);
  // Returns true if there is a message from any rank with any tag.
  bool peek(mpi::Comm comm, int to, mpi::Envelope& envelope);

  // Makes no message arrive from now on.
  void cut() { is_cut_ = true; }
  // Returns the number of messages that were sent and have not arrived.
  std::size_t in_progress();
  // Returns the ranks with which this one has exchanged messages.
  std::set<int> peers_of(int rank);

 private:
  struct Message {
    std::string bytes;
    std::shared_ptr<std::atomic<bool>> received;
  };

  std::atomic<bool> is_cut_{false};

  std::mutex mutex_;                                                            // guards the rest
  std::map<std::tuple<int, int, int, mpi::Comm>, std::deque<Message>> queues_;  // by to, tag, from, stream
  std::map<int, std::set<int>> peers_;
};

// The messages of one rank that an MPI with a full socket keeps: their sends are complete, and they leave in later
// calls of the same rank. Thread-safe.
class Outbox {
 public:
  void add(std::function<void()> deliver);
  void progress();

 private:
  std::mutex mutex_;  // guards the rest
  std::int64_t calls_ = 0;
  std::deque<std::pair<std::int64_t, std::function<void()>>> messages_;  // with the call in which each leaves
};

// One rank's view. Sends complete at once. Thread-safe.
class FakeApi final : public mpi::Api {
 public:
  // Messages arrive at once if there is no outbox.
  FakeApi(FakeNetwork& network, int rank, int size, std::shared_ptr<Outbox> outbox = nullptr)
      : network_(network), rank_(rank), size_(size), outbox_(std::move(outbox)) {}

  mpi::Family family() const override { return mpi::Family::mpich; }
  std::string version() override { return "fake"; }
  std::string device() override { return ""; }
  bool initialized() override { return true; }
  bool finalized() override { return false; }
  bool initialize(bool) override { return true; }
  bool is_multithreaded() const override { return true; }
  void finalize() override {}
  void abort(int) override {}
  mpi::Comm world() override { return 0; }
  int rank(mpi::Comm) override { return rank_; }
  int size(mpi::Comm) override { return size_; }
  mpi::Comm duplicate(mpi::Comm comm) override { return comm; }
  mpi::Comm create(mpi::Comm parent, std::span<const int>, int) override { return parent; }
  mpi::Comm duplicate_as_stream(mpi::Comm, int number) override { return static_cast<mpi::Comm>(number + 1); }
  void free(mpi::Comm) override { ++freed_; }
  int last_tag() override { return last_tag_; }
  mpi::Request send(mpi::Comm comm, const void* data, int bytes, int to, int tag) override;
  mpi::Request send_until_received(mpi::Comm comm, const void* data, int bytes, int to, int tag) override;
  mpi::Request receive(mpi::Comm comm, void* data, int bytes, int from, int tag) override;
  bool test(mpi::Request& request) override;
  bool abandon(mpi::Request& request, bool receiving) override;
  bool probe(mpi::Comm comm, mpi::Envelope& envelope) override;

  std::size_t open_requests();
  int freed() const { return freed_; }
  void set_last_tag(int tag) { last_tag_ = tag; }
  // Waits until a thread has called probe() this number of times, and returns how often each thread has called it.
  std::map<std::thread::id, int> wait_for_looks(int count);

  // As in MPI, a receive with a matched message cannot be cancelled. Receives that are abandoned from now on are
  // matched.
  void match_all();
  // Delivers the messages for abandoned receives. Returns their number.
  std::size_t deliver_late();

 private:
  struct Receive {
    void* data;
    int bytes, from, tag;
    mpi::Comm comm;
  };

  bool test_locked(mpi::Request& request);

  FakeNetwork& network_;
  int rank_, size_;
  std::shared_ptr<Outbox> outbox_;
  std::atomic<int> freed_{0}, last_tag_{(1 << 20) - 1};
  std::mutex mutex_;  // guards the rest
  bool cannot_cancel_ = false;
  std::vector<Receive> abandoned_;
  mpi::Request next_ = 1;
  std::map<mpi::Request, Receive> receives_;
  std::map<mpi::Request, std::shared_ptr<std::atomic<bool>>> until_received_;
  std::map<std::thread::id, int> looks_;
  int most_looks_ = 0;  // of a thread
  std::condition_variable looked_;
};

// Makes fabrics of ranks that are threads, connected by MPI's fabric over the fake libmpi. If `outboxes`, each rank has
// an Outbox. `last_tag` is the largest tag of the fake.
std::vector<std::unique_ptr<Fabric>> make_message_fabrics(int ranks, Liveness& liveness, bool outboxes = false,
                                                          int last_tag = (1 << 20) - 1);

}  // namespace perseus::testing
