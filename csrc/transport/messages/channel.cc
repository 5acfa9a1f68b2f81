#include "transport/messages/channel.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"

namespace perseus::messages {
namespace {

// The time to wait for the last messages of a session, such as a shutdown message or an error.
constexpr std::chrono::milliseconds kShutdownGrace{500};
// An engine such as MPI may keep the last bytes of sends that are complete. It sends them in its calls of this time.
constexpr std::chrono::milliseconds kLeastGrace{1};

}  // namespace

MessageChannel::~MessageChannel() {
  messages_->notify(nullptr);
  try {
    if (!messages_->has_no_network()) close();
  } catch (const Error&) {
    // No rank is left that would receive it.
  }
}

void MessageChannel::close() {
  const bool lost = liveness_ != nullptr && liveness_->any_lost();
  try {
    messages_->close();
  } catch (const Error&) {
    // The receiver of the last message is lost.
  }
  if (!lost) {
    ControlMessage discarded;
    const auto begin = std::chrono::steady_clock::now();
    const auto waited = [begin] { return std::chrono::steady_clock::now() - begin; };
    while (waited() < kLeastGrace || (messages_->keeps_any() && waited() < kShutdownGrace)) {
      if (!messages_->receive(discarded)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  closing_channels_.add(std::move(messages_));
}

void MessageChannel::notify(Doorbell& doorbell) {
  notified_ = &doorbell;
  messages_->notify(&doorbell);
  doorbell.notify();
}

void MessageChannel::send(int to, std::string bytes) {
  if (to == rank()) {
    to_self_.push_back({to, std::move(bytes)});
    notified_->notify();
    return;
  }
  messages_->send(to, std::move(bytes));
}

bool MessageChannel::receive(ControlMessage& message) {
  if (to_self_.empty()) return messages_->receive(message);
  message = std::move(to_self_.front());
  to_self_.pop_front();
  return true;
}

}  // namespace perseus::messages
