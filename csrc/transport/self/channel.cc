#include "transport/self/channel.h"

#include <utility>

namespace perseus::self {

void SelfChannel::send(int, std::string bytes) {
  messages_.push_back(std::move(bytes));
  doorbell_.notify();
}

bool SelfChannel::receive(ControlMessage& message) {
  if (messages_.empty()) return false;
  message = {0, std::move(messages_.front())};
  messages_.pop_front();
  return true;
}

}  // namespace perseus::self
