// The control channel of a group over MPI. Messages do not notify the doorbell, so the engine polls.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "transport/control_channel.h"
#include "transport/mpi/control_messages.h"

namespace perseus::mpi {

class MpiChannel final : public ControlChannel {
 public:
  // Takes ownership of `comm`. The destructor passes it to `closing_channels`.
  MpiChannel(Api& api, Comm comm, const WaitOptions& options, ClosingChannels& closing_channels)
      : api_(api),
        liveness_(options.liveness),
        closing_channels_(closing_channels),
        messages_(std::make_unique<ControlMessages>(api, comm, options)) {}
  ~MpiChannel() override;

  int rank() const override { return messages_->rank(); }
  int size() const override { return messages_->size(); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override { return messages_->keeps_for(to); }
  bool keeps_any() const override { return messages_->keeps_any(); }
  bool receive(ControlMessage& message) override;
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return true; }

 private:
  void close();

  Api& api_;
  const Liveness* liveness_;
  ClosingChannels& closing_channels_;
  std::unique_ptr<ControlMessages> messages_;
  std::deque<ControlMessage> to_self_;
  Doorbell doorbell_;
};

}  // namespace perseus::mpi
