// The connections of this process to the ranks of other hosts, by UCX's workers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/wait/doorbell.h"
#include "bootstrap/local/local_socket.h"
#include "transport/control_channel.h"
#include "transport/messages/network.h"
#include "transport/ucx/library.h"

namespace perseus::ucx {

using messages::Request;

// The control messages of one group that have arrived and were not taken.
struct Inbox {
  std::mutex mutex;  // guards the rest
  std::deque<ControlMessage> messages;
  std::string failure;           // why a message could not be received; empty: none
  Doorbell* doorbell = nullptr;  // null: no channel is open
  std::atomic<bool> has_news{false};
};

// Tells a message from the others. It has the same values on all ranks.
struct Address {
  std::uint64_t group = 0;  // at most kGroupBits bits
  int from = 0;             // the sender's rank within the group
  int tag = 0;              // 1 to 15; 0: a control message, which the receiver's inbox gets
};

// The number of bits of a rank, a group's number and a tag in the 64 bits of UCX's tag. One bit marks control messages.
inline constexpr int kTagBits = 4, kRankBits = 20, kGroupBits = 39;

struct ConnectionOptions {
  int streams = 1;
  std::string devices;  // UCX's network devices; empty: all
};

// One worker per stream, and a thread that sleeps on their descriptors and makes progress while no other thread does.
// Connections are made by the first send to a rank. Thread-safe.
class Connections {
 public:
  Connections(const Library& library, const ConnectionOptions& options);
  // Sends what is in flight, unless lose() was called, and closes all connections.
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  const Library& library() const { return library_; }
  int streams() const { return static_cast<int>(streams_.size()); }

  // Returns the addresses of the streams for the other ranks, and takes theirs, by world rank.
  std::string addresses() const;
  void set_addresses(const std::vector<std::string>& by_rank);

  // `to` and `peer` are world ranks. Control messages use the first stream. `waiter` is notified once the request is
  // done, unless it is abandoned before.
  Request send(int stream, const void* data, std::size_t bytes, int to, const Address& address, Doorbell& waiter);
  Request receive(int stream, void* data, std::size_t bytes, int peer, const Address& address, Doorbell& waiter);
  static bool is_in_flight(Request request);
  // Throws Error(transport) if the message has failed.
  bool test(Request& request);
  bool abandon(Request& request, bool receiving);

  // Makes progress, unless another thread does so. Never blocks.
  void progress();
  // Sleeps until `waiter` is notified later than `seen`, but at most for `limit`; one thread at a time sleeps on the
  // descriptors and makes progress for all. It may return earlier.
  void sleep(Doorbell& waiter, std::uint32_t seen, std::chrono::microseconds limit);
  // A thread that makes progress itself for a while calls begin_polling() before and leave() once it stops.
  void begin_polling() { polling_.fetch_add(1, std::memory_order_seq_cst); }
  void leave();

  std::shared_ptr<Inbox> inbox(std::uint64_t group);

  // Keeps the bytes of an unfinished message until the connections are closed.
  void keep(std::unique_ptr<std::string> bytes);
  // A rank is lost, so that the destructor does not wait for what is in flight.
  void lose() { lost_.store(true, std::memory_order_release); }

 private:
  struct Stream;
  struct Posted;
  struct Arriving {
    std::uint64_t group = 0;
    ControlMessage message;
    void* request = nullptr;  // null: it has arrived
  };

  Request post(int stream, int peer, Doorbell& waiter, void* request);
  Endpoint endpoint(Stream& stream, int to);
  void advance(Stream& stream);
  void take_control_messages(Stream& first);
  void deliver(Arriving& arrived, Status status);
  bool arm();
  bool sleep_on_descriptors(std::chrono::microseconds limit);
  void wake() const;
  void run();
  void close(Stream& stream, std::chrono::steady_clock::time_point until);

  static void prepare(void* request);
  static void ended(void* request, Status status);
  static void failed(void* argument, Endpoint endpoint, Status status);

  const Library& library_;
  Context context_ = nullptr;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::vector<std::string>> addresses_;  // by world rank and stream
  std::list<Arriving> arriving_;                     // guarded by the mutex of the first stream
  std::mutex inboxes_mutex_;                         // guards inboxes_ and kept_
  std::unordered_map<std::uint64_t, std::shared_ptr<Inbox>> inboxes_;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::atomic<int> polling_{0};
  std::atomic<Doorbell*> sleeping_{nullptr};  // of the thread in sleep() that sleeps on the descriptors
  UniqueFd wake_;                             // an eventfd that ends a sleep on the descriptors
  std::atomic<bool> stop_{false}, lost_{false};
  Doorbell idle_;  // of the thread
  std::thread thread_;
};

}  // namespace perseus::ucx
