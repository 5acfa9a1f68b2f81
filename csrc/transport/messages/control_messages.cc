#include "transport/messages/control_messages.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perseus::messages {
namespace {

// The last byte of a message. It also makes every message non-empty, because empty messages are not sent.
constexpr char kContent = 'c';
constexpr char kClosed = 'b';  // of the barrier
constexpr std::byte kNothingFollows{'n'};

}  // namespace

void ControlMessages::send(int to, std::string bytes) {
  receivers_.insert(to);
  send_with_kind(to, std::move(bytes), kContent);
}

void ControlMessages::send_with_kind(int to, std::string bytes, char kind) {
  bytes.push_back(kind);
  auto& message = outgoing_.emplace_back(communicator_);
  message.peer = to;
  message.bytes = std::make_unique<std::string>(std::move(bytes));
  message.messages.add(network_.send_control(message.bytes->data(), message.bytes->size(), to), to, false);
  release_finished();
}

bool ControlMessages::receive(ControlMessage& message) {
  release_finished();
  receive_arrivals();
  while (!incoming_.empty() && incoming_.front().messages.done()) {
    message = {incoming_.front().peer, std::move(*incoming_.front().bytes)};
    incoming_.pop_front();
    const char kind = message.bytes.back();
    message.bytes.pop_back();
    if (kind == kContent) return true;
    if (kind == kClosed) tokens_from_.insert(message.from);
  }
  return false;
}

bool ControlMessages::keeps_for(int to) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [to](const InFlightMessage& message) { return message.peer == to; });
}

void ControlMessages::close() {
  communicator_.outlive_session();
  for (const int peer : receivers_) {
    last_.add(network_.send_control_until_received(&kNothingFollows, 1, peer), peer, false);
  }
}

bool ControlMessages::ended() {
  ControlMessage discarded;
  while (receive(discarded)) {
  }
  return outgoing_.empty() && incoming_.empty() && last_.done() && all_have_closed() && outgoing_.empty();
}

// The tokens are control messages, too: the end of a group uses no connection that nobody makes progress on.
bool ControlMessages::all_have_closed() {
  for (; distance_ < size(); distance_ *= 2) {
    if (!std::exchange(sent_token_, true)) send_with_kind((rank() + distance_) % size(), {}, kClosed);
    if (!tokens_from_.contains((rank() - distance_ + size()) % size())) return false;
    sent_token_ = false;
  }
  return true;
}

void ControlMessages::release_finished() {
  std::erase_if(outgoing_, [](InFlightMessage& message) { return message.messages.done(); });
}

void ControlMessages::receive_arrivals() {
  for (Arrival arrival; network_.take_arrival(arrival);) {
    auto& message = incoming_.emplace_back(communicator_);
    message.peer = arrival.from;
    message.bytes = std::move(arrival.bytes);
    message.messages.add(arrival.request, arrival.from, true);
  }
}

void ClosingChannels::add(std::unique_ptr<ControlMessages> messages) {
  {
    const std::scoped_lock lock(mutex_);
    closing_channels_.push_back(std::move(messages));
    if (closing_channels_.size() <= 2 * left_) return;
  }
  sweep();
}

std::size_t ClosingChannels::sweep() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(closing_channels_, [](const std::unique_ptr<ControlMessages>& messages) {
    try {
      return messages->ended();
    } catch (const Error&) {
      return false;  // never freed, because messages for it may still arrive
    }
  });
  left_ = closing_channels_.size();
  return left_;
}

}  // namespace perseus::messages
