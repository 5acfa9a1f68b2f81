// The control channel of a group with one rank, which sends messages to itself.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "transport/control_channel.h"

namespace perseus::self {

class SelfChannel final : public ControlChannel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void send(int, std::string bytes) override {
    messages_.push_back(std::move(bytes));
    doorbell_.notify();
  }
  bool receive(ControlMessage& message) override {
    if (messages_.empty()) return false;
    message = {0, std::move(messages_.front())};
    messages_.pop_front();
    return true;
  }
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return false; }

 private:
  std::deque<std::string> messages_;
  Doorbell doorbell_;
};

}  // namespace perseus::self
