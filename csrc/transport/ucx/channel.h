// The control channel of a group over UCX, whose messages notify the doorbell.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/watch/liveness.h"
#include "transport/control_channel.h"
#include "transport/ucx/connections.h"

namespace perseus::ucx {

class UcxChannel final : public ControlChannel {
 public:
  // The arguments are those of UcxNetwork.
  UcxChannel(std::shared_ptr<Connections> connections, std::vector<int> members, int rank, std::uint64_t group,
             const Liveness& liveness);
  ~UcxChannel() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override;
  bool keeps_any() const override;
  bool receive(ControlMessage& message) override;
  Doorbell& doorbell() override { return *notified_; }
  void notify(Doorbell& doorbell) override;
  bool needs_polling() const override { return false; }

 private:
  struct Outgoing {
    int to = 0;
    std::unique_ptr<std::string> bytes;
    Request request = 0;
  };

  void release_sent();

  std::shared_ptr<Connections> connections_;
  std::vector<int> members_;
  int rank_;
  std::uint64_t group_;
  const Liveness& liveness_;
  std::shared_ptr<Inbox> inbox_;
  Doorbell doorbell_;
  Doorbell* notified_ = &doorbell_;
  std::list<Outgoing> outgoing_;
};

}  // namespace perseus::ucx
