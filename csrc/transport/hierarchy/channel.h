// Control messages of a group on several hosts: within a host through its own channel, between hosts through leaders.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/control_channel.h"
#include "transport/hierarchy/layout.h"

namespace perseus::hierarchy {

// Reaches the ranks of its own host, and from a leader (the lowest rank of its host) the other leaders.
class ClusterChannel final : public ControlChannel {
 public:
  // `cross` connects the leaders; null on other ranks.
  ClusterChannel(const Layout& layout, int rank, std::unique_ptr<ControlChannel> local,
                 std::unique_ptr<ControlChannel> cross);

  int rank() const override { return rank_; }
  int size() const override { return layout_.size(); }
  // Throws Error(invalid_argument) for a rank that is out of reach.
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override;
  bool receive(ControlMessage& message) override;
  Doorbell& doorbell() override { return local_->doorbell(); }
  bool needs_polling() const override { return local_->needs_polling() || cross_ != nullptr; }

 private:
  Layout layout_;
  int rank_;
  std::vector<int> leader_hosts_;  // host of each rank of `cross`
  std::unique_ptr<ControlChannel> local_, cross_;
};

}  // namespace perseus::hierarchy
