// Control messages of a group on several hosts: within a host through its own channel, between hosts through leaders.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/control_channel.h"
#include "transport/hierarchy/layout.h"

namespace perseus::hierarchy {

// The ranks of the own host, from a leader (the lowest rank of its host) the other leaders, and all others directly: by
// the last way no message of the negotiation goes, and it is looked at only while somebody waits for one.
class ClusterChannel final : public ControlChannel {
 public:
  // `cross` connects the leaders; null on other ranks. `direct` connects all.
  ClusterChannel(const Layout& layout, int rank, std::unique_ptr<ControlChannel> local,
                 std::unique_ptr<ControlChannel> cross, std::unique_ptr<ControlChannel> direct);

  int rank() const override { return rank_; }
  int size() const override { return layout_.size(); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override;
  bool keeps_any() const override;
  bool receive(ControlMessage& message) override;
  std::optional<std::uint64_t> lay_out(int to, const void* data, std::size_t bytes) override;
  void take_back(std::uint64_t place) override { local_->take_back(place); }
  const void* find(int from, std::uint64_t place, std::size_t bytes) override;
  void expect_anybody(bool expected) override { expects_anybody_ = expected; }
  Doorbell& doorbell() override { return local_->doorbell(); }
  bool needs_polling() const override { return local_->needs_polling() || cross_ != nullptr || looks_everywhere(); }

 private:
  // The engine that reaches a rank, and the rank's number there.
  std::pair<ControlChannel*, int> way_to(int rank) const;
  bool looks_everywhere() const { return expects_anybody_ || direct_->keeps_any(); }

  Layout layout_;
  int rank_;
  bool expects_anybody_ = false;
  std::vector<int> leader_hosts_;  // host of each rank of `cross`
  std::unique_ptr<ControlChannel> local_, cross_, direct_;
};

}  // namespace perseus::hierarchy
