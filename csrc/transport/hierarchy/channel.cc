#include "transport/hierarchy/channel.h"

#include <algorithm>
#include <utility>

namespace perseus::hierarchy {

HierarchicalChannel::HierarchicalChannel(const Layout& layout, int rank, std::unique_ptr<ControlChannel> local,
                                         std::unique_ptr<ControlChannel> cross, std::unique_ptr<ControlChannel> direct)
    : layout_(layout),
      rank_(rank),
      leader_hosts_(layout.hosts_of_rail(0)),
      local_(std::move(local)),
      cross_(std::move(cross)),
      direct_(std::move(direct)) {
  if (cross_ != nullptr) cross_->notify(local_->doorbell());
  direct_->notify(local_->doorbell());
}

std::pair<ControlChannel*, int> HierarchicalChannel::route_to(int rank) const {
  const int host = layout_.host_of(rank);
  if (host == layout_.host_of(rank_)) return {local_.get(), layout_.index_of(rank)};
  if (cross_ == nullptr || layout_.index_of(rank) != 0) return {direct_.get(), rank};
  const auto place = std::find(leader_hosts_.begin(), leader_hosts_.end(), host);
  return {cross_.get(), static_cast<int>(place - leader_hosts_.begin())};
}

void HierarchicalChannel::send(int to, std::string bytes) {
  const auto [channel, number] = route_to(to);
  channel->send(number, std::move(bytes));
}

bool HierarchicalChannel::keeps_for(int to) const {
  const auto [channel, number] = route_to(to);
  return channel->keeps_for(number);
}

bool HierarchicalChannel::keeps_any() const {
  return local_->keeps_any() || (cross_ != nullptr && cross_->keeps_any()) || direct_->keeps_any();
}

std::optional<std::uint64_t> HierarchicalChannel::lay_out(int to, const void* data, std::size_t bytes) {
  if (layout_.host_of(to) != layout_.host_of(rank_)) return std::nullopt;
  return local_->lay_out(layout_.index_of(to), data, bytes);
}

const void* HierarchicalChannel::find(int from, std::uint64_t place, std::size_t bytes) {
  if (layout_.host_of(from) != layout_.host_of(rank_)) return nullptr;
  return local_->find(layout_.index_of(from), place, bytes);
}

bool HierarchicalChannel::receive(ControlMessage& message) {
  if (local_->receive(message)) {
    const auto& ranks = layout_.ranks_on(layout_.host_of(rank_));
    message.from = ranks[static_cast<std::size_t>(message.from)];
    return true;
  }
  if (cross_ != nullptr && cross_->receive(message)) {
    message.from = layout_.ranks_on(leader_hosts_[static_cast<std::size_t>(message.from)]).front();
    return true;
  }
  // Each call lets MPI send what other calls have left behind, also the last bytes of a collective. A leader makes such
  // calls for `cross_`.
  return (polls_direct() || cross_ == nullptr) && direct_->receive(message);
}

}  // namespace perseus::hierarchy
