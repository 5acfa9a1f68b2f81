#include "transport/shm/channel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace perseus::shm {

namespace {

constexpr std::uint32_t kLongestFrame = 1U << 30;
constexpr std::uint32_t kMostRingBytes = 8192;
constexpr std::uint32_t kLeastRingBytes = 512;
constexpr std::uint32_t kAllRingsBytes = 256 * 1024;

}  // namespace

std::uint32_t Mailbox::ring_bytes_for(int members) {
  const auto share = std::bit_floor(kAllRingsBytes / static_cast<std::uint32_t>(members));
  return std::clamp(share, kLeastRingBytes, kMostRingBytes);
}

Channel::Channel(std::shared_ptr<GroupView> view, Mailbox mailbox, std::vector<int> world_ranks, Liveness& liveness)
    : view_(std::move(view)),
      mailbox_(mailbox),
      world_ranks_(std::move(world_ranks)),
      liveness_(liveness),
      peers_(static_cast<std::size_t>(size())) {
  const auto ring = [&](int owner, int from) {
    return RingBuffer(reinterpret_cast<RingBufferState*>(view_->block(owner) + mailbox_.ring_offset(from)),
                      mailbox_.ring_bytes);
  };
  for (int member = 0; member < size(); ++member) {
    auto& peer = peers_[static_cast<std::size_t>(member)];
    peer.out = ring(member, rank());
    peer.in = ring(rank(), member);
  }
}

Doorbell& Channel::doorbell_of(int member) const {
  return *reinterpret_cast<Doorbell*>(view_->block(member) + mailbox_.offset);
}

void Channel::notify_peer(int member) {
  auto& doorbell = doorbell_of(member);
  if (const auto* set = doorbell.ready_set()) {
    const auto local_rank = view_->local_rank_of(member);
    const auto* segment = view_->arena().at(local_rank, 0, 0);
    const auto offset = reinterpret_cast<std::uintptr_t>(set) - reinterpret_cast<std::uintptr_t>(segment);
    if (view_->arena().at(local_rank, offset, sizeof *set) == nullptr) {
      return disconnect(member, "wrote a wrong address into its doorbell");
    }
  }
  doorbell.notify();
}

void Channel::send(int to, std::string bytes) {
  if (to == rank()) {
    to_self_.push_back(std::move(bytes));
    doorbell().notify();
    return;
  }
  auto& peer = peers_[static_cast<std::size_t>(to)];
  if (peer.pending.empty()) ++pending_;
  const auto length = static_cast<std::uint32_t>(bytes.size());
  peer.pending.append(reinterpret_cast<const char*>(&length), sizeof length);
  peer.pending += bytes;
  flush(to);
}

void Channel::flush(int member) {
  auto& peer = peers_[static_cast<std::size_t>(member)];
  const auto write = [&] {
    const auto written = peer.out.write(peer.pending.data() + peer.sent, peer.pending.size() - peer.sent);
    peer.sent += written;
    return written > 0;
  };
  bool wrote = write();
  // The reader may have made room between the write and the request.
  while (peer.sent < peer.pending.size() && !peer.out.request_room()) wrote = write() || wrote;
  if (wrote) notify_peer(member);
  if (peer.sent < peer.pending.size()) return;
  peer.pending.clear();
  peer.sent = 0;
  --pending_;
}

bool Channel::receive(ControlMessage& message) {
  for (int member = 0; pending_ > 0 && member < size(); ++member) {
    if (!peers_[static_cast<std::size_t>(member)].pending.empty()) flush(member);
  }
  if (!to_self_.empty()) {
    message = {rank(), std::move(to_self_.front())};
    to_self_.erase(to_self_.begin());
    return true;
  }
  for (int i = 0; i < size(); ++i) {
    const int member = (next_ + i) % size();
    if (member == rank()) continue;
    if (take_frame(member, message)) {
      next_ = (member + 1) % size();
      return true;
    }
    fetch(member);
    if (take_frame(member, message)) {
      next_ = (member + 1) % size();
      return true;
    }
  }
  return false;
}

std::optional<std::uint64_t> Channel::lay_out(int /*to*/, const void* data, std::size_t bytes) {
  void* memory = view_->lay_out(bytes);
  if (memory == nullptr) return std::nullopt;
  std::memcpy(memory, data, bytes);
  return view_->arena().offset_of(memory, bytes);
}

void Channel::take_back(std::uint64_t place) {
  if (void* memory = view_->arena().at(view_->local_rank_of(rank()), place, 1)) view_->take_back(memory);
}

const void* Channel::find(int from, std::uint64_t place, std::size_t bytes) {
  return view_->arena().at(view_->local_rank_of(from), place, bytes);
}

void Channel::fetch(int member) {
  auto& peer = peers_[static_cast<std::size_t>(member)];
  if (peer.broken || peer.in.readable() == 0) return;
  if (peer.in.corrupted()) return disconnect(member, "wrote more into its ring than fits");
  std::array<char, 4096> bytes{};
  while (const auto count = peer.in.read(bytes.data(), bytes.size())) peer.arriving.append(bytes.data(), count);
  if (peer.in.take_room_request()) notify_peer(member);
}

bool Channel::take_frame(int member, ControlMessage& message) {
  auto& peer = peers_[static_cast<std::size_t>(member)];
  std::uint32_t length = 0;
  if (peer.arriving.size() < sizeof length) return false;
  std::memcpy(&length, peer.arriving.data(), sizeof length);
  if (length > kLongestFrame) {
    disconnect(member, "sent a message of an impossible length");
    return false;
  }
  if (peer.arriving.size() - sizeof length < length) return false;
  message = {member, peer.arriving.substr(sizeof length, length)};
  peer.arriving.erase(0, sizeof length + length);
  return true;
}

void Channel::disconnect(int member, const char* why) {
  auto& peer = peers_[static_cast<std::size_t>(member)];
  peer.broken = true;
  peer.arriving.clear();
  liveness_.report_lost(world_ranks_[static_cast<std::size_t>(member)],
                        std::string(why) + "; its process is corrupted");
}

}  // namespace perseus::shm
