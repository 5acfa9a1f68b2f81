// Carries the control messages of a group on several hosts.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/control_channel.h"
#include "transport/hierarchy/layout.h"

namespace perseus::hierarchy {

// Routes messages to ranks of the same host over the host's channel, and between host leaders over a channel of the
// leaders. All other messages go over a channel that connects all ranks directly. The negotiation does not use that
// channel. It is polled often only while expect_anybody() is set or it has bytes to send.
class HierarchicalChannel final : public ControlChannel {
 public:
  // `cross` connects the leaders; null on other ranks. `direct` connects all.
  HierarchicalChannel(const Layout& layout, int rank, std::unique_ptr<ControlChannel> local,
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
  void expect_anybody(bool expected) override { polls_others_ = expected; }
  Doorbell& doorbell() override { return local_->doorbell(); }
  bool needs_polling() const override {
    return local_->needs_polling() || (cross_ != nullptr && cross_->needs_polling()) ||
           (direct_->needs_polling() && polls_direct());
  }
  bool needs_progress() const override { return direct_->needs_polling(); }

 private:
  // Returns the channel that reaches a rank, and the rank's number in it.
  std::pair<ControlChannel*, int> route_to(int rank) const;
  bool polls_direct() const { return !direct_->needs_polling() || polls_others_ || direct_->keeps_any(); }

  Layout layout_;
  int rank_;
  bool polls_others_ = false;
  std::vector<int> leader_hosts_;  // the host of each rank of `cross`
  std::unique_ptr<ControlChannel> local_, cross_, direct_;
};

}  // namespace perseus::hierarchy
