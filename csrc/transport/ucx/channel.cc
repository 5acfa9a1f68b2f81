#include "transport/ucx/channel.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"

namespace perseus::ucx {
namespace {

// The time to wait for the last messages of a session, such as a shutdown message or an error.
constexpr std::chrono::milliseconds kShutdownGrace{500};
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

UcxChannel::UcxChannel(std::shared_ptr<Connections> connections, std::vector<int> members, int rank,
                       std::uint64_t group, const Liveness& liveness)
    : connections_(std::move(connections)),
      members_(std::move(members)),
      rank_(rank),
      group_(group),
      liveness_(liveness),
      inbox_(connections_->inbox(group)) {
  notify(doorbell_);
}

UcxChannel::~UcxChannel() {
  auto& doorbell = *notified_;
  const auto until = std::chrono::steady_clock::now() + kShutdownGrace;
  try {
    for (;;) {
      const auto seen = doorbell.notifications();
      connections_->progress();
      release_sent();
      if (outgoing_.empty() || liveness_.any_lost() || std::chrono::steady_clock::now() > until) break;
      doorbell.wait(seen, Sleeper::caller, kLook);
    }
  } catch (const Error&) {
    // The receiver of the last message is lost.
  }
  for (auto& message : outgoing_) {
    if (!connections_->abandon(message.request, false)) connections_->keep(std::move(message.bytes));
  }
  const std::scoped_lock lock(inbox_->mutex);
  inbox_->doorbell = nullptr;
  inbox_->messages.clear();
  inbox_->has_news.store(false, std::memory_order_release);
}

void UcxChannel::notify(Doorbell& doorbell) {
  const std::scoped_lock lock(inbox_->mutex);
  notified_ = &doorbell;
  inbox_->doorbell = &doorbell;
  doorbell.notify();
}

void UcxChannel::send(int to, std::string bytes) {
  if (to == rank_) {
    const std::scoped_lock lock(inbox_->mutex);
    inbox_->messages.push_back({to, std::move(bytes)});
    inbox_->has_news.store(true, std::memory_order_release);
    notified_->notify();
    return;
  }
  auto& message = outgoing_.emplace_back(Outgoing{.to = to, .bytes = std::make_unique<std::string>(std::move(bytes))});
  try {
    message.request = connections_->send(0, message.bytes->data(), message.bytes->size(),
                                         members_[static_cast<std::size_t>(to)], {group_, rank_}, *notified_);
  } catch (const Error&) {
    outgoing_.pop_back();
    throw;
  }
  release_sent();
}

// These look at the requests: a message that has been sent since the last release_sent() notifies nobody any more.
bool UcxChannel::keeps_for(int to) const {
  return std::ranges::any_of(outgoing_, [to](const Outgoing& message) {
    return message.to == to && Connections::is_in_flight(message.request);
  });
}

bool UcxChannel::keeps_any() const {
  return std::ranges::any_of(outgoing_, Connections::is_in_flight, &Outgoing::request);
}

bool UcxChannel::receive(ControlMessage& message) {
  connections_->progress();
  release_sent();
  if (!inbox_->has_news.load(std::memory_order_acquire)) return false;
  const std::scoped_lock lock(inbox_->mutex);
  if (inbox_->messages.empty()) {
    throw Error(ErrorKind::transport, "a control message over UCX was not received: " + inbox_->failure);
  }
  message = std::move(inbox_->messages.front());
  inbox_->messages.pop_front();
  inbox_->has_news.store(!inbox_->messages.empty() || !inbox_->failure.empty(), std::memory_order_release);
  return true;
}

// If a test throws, its request is 0, and the message is removed at the next call.
void UcxChannel::release_sent() {
  std::erase_if(outgoing_, [this](Outgoing& message) { return connections_->test(message.request); });
}

}  // namespace perseus::ucx
