// The control channel of a group over a network. Messages notify the doorbell only once the process looks for them, so
// the engine polls.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "transport/control_channel.h"
#include "transport/messages/control_messages.h"

namespace perseus::messages {

class MessageChannel final : public ControlChannel {
 public:
  // The destructor passes the network to `closing_channels`.
  MessageChannel(std::unique_ptr<PolledNetwork> network, const WaitOptions& options, ClosingChannels& closing_channels)
      : liveness_(options.liveness),
        closing_channels_(closing_channels),
        messages_(std::make_unique<ControlMessages>(std::move(network), options)) {
    messages_->notify(notified_);
  }
  ~MessageChannel() override;

  int rank() const override { return messages_->rank(); }
  int size() const override { return messages_->size(); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override { return messages_->keeps_for(to); }
  bool keeps_any() const override { return messages_->keeps_any(); }
  bool receive(ControlMessage& message) override;
  Doorbell& doorbell() override { return *notified_; }
  void notify(Doorbell& doorbell) override;
  bool needs_polling() const override { return true; }

 private:
  void close();

  const Liveness* liveness_;
  ClosingChannels& closing_channels_;
  Doorbell doorbell_;
  Doorbell* notified_ = &doorbell_;
  std::unique_ptr<ControlMessages> messages_;
  std::deque<ControlMessage> to_self_;
};

}  // namespace perseus::messages
