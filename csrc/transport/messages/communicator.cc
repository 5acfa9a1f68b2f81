#include "transport/messages/communicator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/memory/lent_memory.h"
#include "base/wait/blocking.h"
#include "base/wait/futex.h"

namespace perseus::messages {
namespace {

using Clock = std::chrono::steady_clock;

using std::chrono::microseconds;

constexpr microseconds kShortestSleep{10};
constexpr microseconds kLook{50'000};  // a lost rank ends a sleep of an engine with a doorbell after this time

// The pauses between the polls of one wait. Without a doorbell, a pause is a fraction of the time waited so far, so
// that short waits end soon and long waits cost little.
class Backoff {
 public:
  Backoff(Network& network, const WaitOptions& options)
      : network_(network), options_(options), since_(Clock::now()), doorbell_(network.doorbell()) {}
  ~Backoff() {
    if (timer_slack_ > 0) prctl(PR_SET_TIMERSLACK, timer_slack_, 0, 0, 0);
  }
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;

  // Call it before each poll, so that pause() does not miss a notification.
  void before_poll() {
    if (doorbell_ != nullptr) seen_ = doorbell_->notifications();
  }
  void progressed() { since_ = Clock::now(); }

  // Returns false if there was no progress for too long.
  bool pause() {
    if (options_.liveness != nullptr && options_.liveness->any_lost()) options_.liveness->status().throw_if_failed();
    const auto waited = Clock::now() - since_;
    if (waited < options_.spin) {
      perseus::pause();
      return true;
    }
    before_blocking();
    if (doorbell_ != nullptr) {
      network_.sleep(seen_, kLook);
    } else {
      sharpen_timer();
      std::this_thread::sleep_for(
          std::clamp(std::chrono::duration_cast<microseconds>(waited) / 8, kShortestSleep, options_.longest_sleep));
    }
    return options_.limit.count() == 0 || waited < options_.limit;
  }

 private:
  // Stops the kernel from adding 50 µs to every sleep. The destructor restores the caller's setting.
  void sharpen_timer() {
    if (timer_slack_ >= 0) return;
    timer_slack_ = std::max(0, prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0));
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  }

  Network& network_;
  const WaitOptions& options_;
  Clock::time_point since_;
  Doorbell* doorbell_;
  std::uint32_t seen_ = 0;
  int timer_slack_ = -1;  // the caller's setting in nanoseconds; −1: not read yet
};

}  // namespace

Messages::~Messages() {
  if (pending_.empty()) return;
  bool lent = false;
  auto& network = communicator_->network();
  if (!network.has_ended()) {
    for (auto& pending : pending_) lent = !network.abandon(pending.request, pending.receiving) || lent;
  }
  communicator_->abort();
  if (!lent) return;
  communicator_->has_lent_memory_ = true;
  keep_lent_memory();
}

Messages::Messages(Communicator& communicator, std::int64_t turn)
    : communicator_(&communicator), stream_(static_cast<int>(turn % communicator.streams())) {}

void Messages::send(const void* data, std::size_t bytes, int to, Tag tag) {
  for (std::size_t at = 0; at < bytes; at += Network::kLongestMessage) {
    const auto count = std::min(Network::kLongestMessage, bytes - at);
    const auto* from = static_cast<const std::byte*>(data) + at;
    add(communicator_->network().send(stream_, from, count, to, static_cast<int>(tag)), to, false);
  }
}

void Messages::receive(void* data, std::size_t bytes, int from, Tag tag) {
  for (std::size_t at = 0; at < bytes; at += Network::kLongestMessage) {
    const auto count = std::min(Network::kLongestMessage, bytes - at);
    auto* to = static_cast<std::byte*>(data) + at;
    add(communicator_->network().receive(stream_, to, count, from, static_cast<int>(tag)), from, true);
  }
}

bool Messages::done() {
  communicator_->network().progress();
  // This does not use std::erase_if: if a test throws, each request must be in the list exactly once.
  for (std::size_t i = 0; i < pending_.size();) {
    if (!communicator_->network().test(pending_[i].request)) {
      ++i;
      continue;
    }
    pending_[i] = pending_.back();
    pending_.pop_back();
  }
  return pending_.empty();
}

void Messages::wait() {
  if (done()) return;
  Backoff backoff(communicator_->network(), communicator_->options());
  for (auto before = pending_.size();;) {
    backoff.before_poll();
    if (done()) return;
    if (pending_.size() != before) {
      before = pending_.size();
      backoff.progressed();
    } else if (!backoff.pause()) {
      throw Error(ErrorKind::timed_out,
                  "collective over " + std::string(communicator_->network().name()) + ": no message for " +
                      std::to_string(communicator_->options().limit.count() / 1000) + " s from " + peers() +
                      " (numbers within the group); check whether these ranks still run");
    }
  }
}

std::string Messages::peers() const {
  std::vector<int> ranks;
  ranks.reserve(pending_.size());
  for (const auto& pending : pending_) ranks.push_back(pending.peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += (rank == ranks.front() ? " " : ", ") + std::to_string(rank);
  return text;
}

bool Barrier::done() {
  for (; distance_ < communicator_.size(); distance_ *= 2) {
    if (!round_) {
      round_.emplace(communicator_);
      round_->receive(&tokens_[0], 1, communicator_.rank_behind(distance_), Tag::barrier);
      round_->send(&tokens_[1], 1, communicator_.rank_ahead(distance_), Tag::barrier);
    }
    if (!round_->done()) return false;
    round_.reset();
  }
  return true;
}

Communicator::~Communicator() {
  const bool lost = options_.liveness != nullptr && options_.liveness->any_lost();
  if (!healthy_ || lost || network_->has_ended()) return;
  try {
    network_->close();
  } catch (const Error&) {
    // The network is not used any more in either case.
  }
}

int Communicator::rank_ahead(int distance) const {
  const auto size = static_cast<unsigned>(this->size());
  const auto rank = static_cast<unsigned>(this->rank()), by = static_cast<unsigned>(distance);
  return static_cast<int>(std::has_single_bit(size) ? rank ^ by : (rank + by) % size);
}

int Communicator::rank_behind(int distance) const {
  const auto size = static_cast<unsigned>(this->size());
  return rank_ahead(std::has_single_bit(size) ? distance : this->size() - distance);
}

void Communicator::barrier() {
  for (Barrier barrier(*this); !barrier.done();) barrier.wait_for_round();
}

// Uses Bruck's algorithm: each round doubles the number of blocks that a rank has.
void Communicator::gather_small(void* blocks, Counts bytes) {
  auto* base = static_cast<std::byte*>(blocks);
  const auto bytes_of = [&](int begin, int end) {
    std::size_t sum = 0;
    for (int i = begin; i < end; ++i) sum += static_cast<std::size_t>(bytes[static_cast<std::size_t>(rank_ahead(i))]);
    return sum;
  };
  std::size_t have = bytes_of(0, 1);
  for (int held = 1; held < size(); held *= 2) {
    const int count = std::min(held, size() - held);
    const auto more = bytes_of(held, held + count);
    Messages messages(*this);
    messages.receive(base + have, more, rank_ahead(held), Tag::gather);
    messages.send(base, bytes_of(0, count), rank_behind(held), Tag::gather);
    messages.wait();
    have += more;
  }
}

}  // namespace perseus::messages
