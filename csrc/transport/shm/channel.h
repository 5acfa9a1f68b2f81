// Carries messages between the members of a group through ring buffers in shared memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/watch/liveness.h"
#include "transport/control_channel.h"
#include "transport/shm/group_view.h"
#include "transport/shm/ring_buffer.h"

namespace perseus::shm {

// The layout in each member's block: a doorbell, then a ring buffer from each member (its own is unused).
struct Mailbox {
  std::size_t offset = 0;  // in the block
  std::uint32_t ring_bytes = 0;

  // Returns the size of a ring buffer for a group of `members` members.
  static std::uint32_t ring_bytes_for(int members);
  std::size_t ring_offset(int from) const {
    return offset + kDoorbell + static_cast<std::size_t>(from) * RingBuffer::footprint(ring_bytes);
  }
  std::size_t end(int members) const { return ring_offset(members); }

  static constexpr std::size_t kDoorbell = 128;  // two cache lines, because processors prefetch the adjacent line
};

class Channel final : public ControlChannel {
 public:
  // A peer that writes malformed messages is reported to `liveness` as lost, by its world rank.
  Channel(std::shared_ptr<GroupView> view, Mailbox mailbox, std::vector<int> world_ranks, Liveness& liveness);

  int rank() const override { return view_->rank(); }
  int size() const override { return view_->size(); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override { return !peers_[static_cast<std::size_t>(to)].pending.empty(); }
  bool keeps_any() const override { return pending_ > 0; }
  bool receive(ControlMessage& message) override;
  std::optional<std::uint64_t> lay_out(int to, const void* data, std::size_t bytes) override;
  void take_back(std::uint64_t place) override;
  const void* find(int from, std::uint64_t place, std::size_t bytes) override;
  Doorbell& doorbell() override { return doorbell_of(rank()); }
  bool needs_polling() const override { return false; }

 private:
  struct Peer {
    RingBuffer out, in;
    std::string pending;   // bytes that did not fit yet
    std::size_t sent = 0;  // bytes of `pending` that were sent since
    std::string arriving;  // received bytes; begins with a frame
    bool broken = false;
  };

  Doorbell& doorbell_of(int member) const;
  void notify_peer(int member);
  void flush(int member);
  void fetch(int member);
  bool take_frame(int member, ControlMessage& message);
  void disconnect(int member, const char* why);

  std::shared_ptr<GroupView> view_;
  Mailbox mailbox_;
  std::vector<int> world_ranks_;
  Liveness& liveness_;
  std::vector<Peer> peers_;
  std::vector<std::string> to_self_;
  int pending_ = 0;  // number of peers with pending bytes
  int next_ = 0;     // the peer from which receive() reads first
};

}  // namespace perseus::shm
