#include "transport/hierarchy/channel.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perseus::hierarchy {

ClusterChannel::ClusterChannel(const Layout& layout, int rank, std::unique_ptr<ControlChannel> local,
                               std::unique_ptr<ControlChannel> cross)
    : layout_(layout),
      rank_(rank),
      leader_hosts_(layout.hosts_of_lane(0)),
      local_(std::move(local)),
      cross_(std::move(cross)) {}

void ClusterChannel::send(int to, std::string bytes) {
  const int host = layout_.host_of(to);
  if (host == layout_.host_of(rank_)) {
    local_->send(layout_.index_of(to), std::move(bytes));
    return;
  }
  if (cross_ == nullptr || layout_.index_of(to) != 0) {
    throw Error(ErrorKind::invalid_argument, "control messages between hosts go from leader to leader, not from rank " +
                                                 std::to_string(rank_) + " to rank " + std::to_string(to));
  }
  const auto place = std::find(leader_hosts_.begin(), leader_hosts_.end(), host);
  cross_->send(static_cast<int>(place - leader_hosts_.begin()), std::move(bytes));
}

bool ClusterChannel::keeps_for(int to) const {
  const int host = layout_.host_of(to);
  if (host == layout_.host_of(rank_)) return local_->keeps_for(layout_.index_of(to));
  const auto place = std::find(leader_hosts_.begin(), leader_hosts_.end(), host);
  return cross_ != nullptr && cross_->keeps_for(static_cast<int>(place - leader_hosts_.begin()));
}

bool ClusterChannel::receive(ControlMessage& message) {
  if (local_->receive(message)) {
    const auto& ranks = layout_.ranks_on(layout_.host_of(rank_));
    message.from = ranks[static_cast<std::size_t>(message.from)];
    return true;
  }
  if (cross_ == nullptr || !cross_->receive(message)) return false;
  message.from = layout_.ranks_on(leader_hosts_[static_cast<std::size_t>(message.from)]).front();
  return true;
}

}  // namespace perseus::hierarchy
