// Messages between the members of a group through rings in shared memory.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/liveness.h"
#include "transport/control_channel.h"
#include "transport/shm/membership.h"
#include "transport/shm/ring.h"

namespace perseus::shm {

// Places in each member's block: a doorbell, then a ring from each other member (and one unused, its own).
struct Mailbox {
  std::size_t offset = 0;  // in the block
  std::uint32_t ring_bytes = 0;

  // Rings for a group of so many members.
  static std::uint32_t ring_bytes_for(int members);
  std::size_t ring_offset(int from) const {
    return offset + kDoorbell + static_cast<std::size_t>(from) * Ring::footprint(ring_bytes);
  }
  std::size_t end(int members) const { return ring_offset(members); }

  static constexpr std::size_t kDoorbell = 128;  // two lines: the neighbour line is fetched along
};

class Channel final : public ControlChannel {
 public:
  // What is wrong with a peer's messages is reported to `liveness` under its world rank.
  Channel(std::shared_ptr<Membership> membership, Mailbox mailbox, std::vector<int> world_ranks, Liveness& liveness);

  int rank() const override { return membership_->rank(); }
  int size() const override { return membership_->size(); }
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
    Ring out, in;
    std::string pending;   // what did not fit yet
    std::size_t sent = 0;  // of it
    std::string arriving;  // begins with a frame
    bool broken = false;
  };

  Doorbell& doorbell_of(int member) const;
  void flush(int member);
  void fetch(int member);
  bool take_frame(int member, ControlMessage& message);
  void give_up_on(int member, const char* why);

  std::shared_ptr<Membership> membership_;
  Mailbox mailbox_;
  std::vector<int> world_ranks_;
  Liveness& liveness_;
  std::vector<Peer> peers_;
  std::vector<std::string> to_self_;
  int pending_ = 0;  // peers with pending bytes
  int next_ = 0;     // whose turn it is to be heard first
};

}  // namespace perseus::shm
