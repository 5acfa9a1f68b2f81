#include "transport/messages/control_messages.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace perseus::messages {
namespace {

// The last byte of a message. It also makes every message non-empty, because empty messages are not sent.
constexpr char kContent = 'c';
constexpr std::byte kNothingFollows{'n'};

}  // namespace

void ControlMessages::send(int to, std::string bytes) {
  receivers_.insert(to);
  bytes.push_back(kContent);
  auto& message = outgoing_.emplace_back(communicator_);
  message.content = {to, std::move(bytes)};
  message.messages.send(message.content.bytes.data(), message.content.bytes.size(), to, Tag::control);
  release_finished();
}

bool ControlMessages::receive(ControlMessage& message) {
  release_finished();
  receive_arrivals();
  while (!incoming_.empty() && incoming_.front().messages.done()) {
    message = std::move(incoming_.front().content);
    incoming_.pop_front();
    const char kind = message.bytes.back();
    message.bytes.pop_back();
    if (kind == kContent) return true;
  }
  return false;
}

bool ControlMessages::keeps_for(int to) const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [to](const InFlightMessage& message) { return message.content.from == to; });
}

void ControlMessages::close() {
  communicator_.outlive_session();
  for (const int peer : receivers_) {
    last_.add(network_.send_until_received(0, &kNothingFollows, 1, peer, static_cast<int>(Tag::control)), peer, false);
  }
}

bool ControlMessages::ended() {
  ControlMessage discarded;
  while (receive(discarded)) {
  }
  return outgoing_.empty() && incoming_.empty() && last_.done() && all_closed_.done();
}

void ControlMessages::release_finished() {
  std::erase_if(outgoing_, [](InFlightMessage& message) { return message.messages.done(); });
}

void ControlMessages::receive_arrivals() {
  for (Arrival arrival; network_.probe(static_cast<int>(Tag::control), arrival);) {
    auto& message = incoming_.emplace_back(communicator_);
    message.content.from = arrival.from;
    message.content.bytes.resize(static_cast<std::size_t>(arrival.bytes));
    message.messages.receive(message.content.bytes.data(), message.content.bytes.size(), arrival.from, Tag::control);
  }
}

void ClosingChannels::add(std::unique_ptr<ControlMessages> messages) {
  {
    const std::scoped_lock lock(mutex_);
    closing_channels_.push_back(std::move(messages));
  }
  sweep();
}

bool ClosingChannels::sweep() {
  const std::scoped_lock lock(mutex_);
  std::erase_if(closing_channels_, [](const std::unique_ptr<ControlMessages>& messages) {
    try {
      return messages->ended();
    } catch (const Error&) {
      return false;  // never freed, because messages for it may still arrive
    }
  });
  return closing_channels_.empty();
}

}  // namespace perseus::messages
