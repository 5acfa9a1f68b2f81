// Lets the ranks of a host reach shared memory that this library has not made: torch's, or that of multiprocessing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bootstrap/local/local_rendezvous.h"
#include "transport/shm/memory/mapped_file.h"

namespace perseus::shm {

// The sockets by which ranks of a host send each other descriptors at any time.
struct Inboxes {
  UniqueFd mine;                  // where this rank receives
  std::vector<UniqueFd> senders;  // by local rank: the end through which the others send
};

// Makes the sockets. Collective over the rendezvous. Throws Error.
Inboxes share_inboxes(LocalRendezvous& rendezvous);

// A place in the memory of a rank: the number of a segment, and an offset in it.
struct Place {
  static constexpr std::uint32_t kArena = 0;

  std::uint32_t segment = kArena;
  std::uint64_t offset = 0;
};

// The external segments of one rank and those of its peers on the host. Thread-safe.
//
// A segment is shared in three steps, so that a peer that cannot map it does not fail a collective: its owner offers it
// in the first collective that uses it, which still copies; each peer maps it during that collective and confirms it;
// collectives after that reach it.
class ExternalSegments : public std::enable_shared_from_this<ExternalSegments> {
 public:
  ExternalSegments(Inboxes inboxes, int local_rank);

  // Makes [data, data + bytes) reachable until the returned object is released, which must be before the memory is
  // freed. The file of the memory must not shrink before. Throws Error(unavailable) if no file is behind the memory, or
  // if there is no room for all of its pages.
  std::shared_ptr<void> add(const void* data, std::size_t bytes);

  // Returns the place of a range if it lies in one of this rank's segments and all of `local_ranks` have mapped it.
  // Offers the segment to those that have not.
  std::optional<Place> find(const void* data, std::size_t bytes, std::span<const int> local_ranks);

  // Counts the messages of this rank to its peers. A peer that learns of a higher number calls receive().
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  // Maps and unmaps what peers have offered and released.
  void receive();

  // Returns the address of a place in a peer's segment, or null if there is no such place. It stays mapped while the
  // pointer is held.
  std::shared_ptr<std::byte> at(int local_rank, Place place, std::uint64_t bytes);

 private:
  enum class Kind : std::uint32_t { offer, confirm, refuse, release };
  struct Message {
    Kind kind = Kind::offer;
    std::uint32_t segment = 0;
    std::int64_t from = 0;  // local rank
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  enum class Peer : std::uint8_t { unaware, offered, confirmed, refused };
  struct Own {
    std::uint32_t number = 0;
    MappedFile file;
    std::vector<Peer> peers;  // by local rank
  };
  struct Mapped {
    std::shared_ptr<std::byte> memory;
    std::uint64_t bytes = 0;
  };

  // All of these need mutex_.
  IoResult send(int local_rank, Message message, int fd);
  void post(int local_rank, Message message);
  void send_posted();
  void offer(Own& own, int local_rank);
  void receive_all();
  void handle(const Message& message, UniqueFd fd);
  bool map(const Message& message, const UniqueFd& fd);
  void remove(const std::byte* begin);
  Own* own_of(std::uint32_t number);

  const Inboxes inboxes_;
  const int local_rank_;
  const int owner_;  // the process; forked children send nothing
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<std::size_t> count_{0};    // of own_
  std::mutex mutex_;                     // guards the rest
  std::map<const std::byte*, Own> own_;  // by their begin
  std::uint32_t last_number_ = Place::kArena;
  std::vector<std::pair<int, Message>> posted_;  // messages that wait for room, by the local rank of the inbox
  std::map<std::pair<int, std::uint32_t>, Mapped> mapped_;  // of peers, by local rank and segment
};

}  // namespace perseus::shm
