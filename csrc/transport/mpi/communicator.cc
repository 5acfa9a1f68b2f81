#include "transport/mpi/communicator.h"

#include <sys/prctl.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/futex.h"

namespace perseus::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// MPI counts in int; a power of two keeps pieces aligned.
constexpr std::size_t kLongestMessage = std::size_t{1} << 30;

using std::chrono::microseconds;

constexpr microseconds kShortestSleep{10};
constexpr microseconds kLongestSleep{200};

// The pauses between looks of one wait: a share of the time waited so far, so that what is soon there is soon seen, and
// what takes long costs little.
class Patience {
 public:
  explicit Patience(const WaitOptions& options) : options_(options), since_(Clock::now()) {}
  ~Patience() {
    if (timer_slack_ > 0) prctl(PR_SET_TIMERSLACK, timer_slack_, 0, 0, 0);
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

  void progressed() { since_ = Clock::now(); }

  // False when nothing has happened for too long.
  bool pause() {
    if (options_.liveness != nullptr && options_.liveness->any_lost()) options_.liveness->status().throw_if_failed();
    const auto waited = Clock::now() - since_;
    if (waited < options_.spin) {
      perseus::pause();
      return true;
    }
    sharpen_timer();
    std::this_thread::sleep_for(
        std::clamp(std::chrono::duration_cast<microseconds>(waited) / 8, kShortestSleep, kLongestSleep));
    return options_.limit.count() == 0 || waited < options_.limit;
  }

 private:
  // By default the kernel adds 50 µs to every sleep; the caller's own setting comes back after the wait.
  void sharpen_timer() {
    if (timer_slack_ >= 0) return;
    timer_slack_ = std::max(0, prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0));
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  }

  const WaitOptions& options_;
  Clock::time_point since_;
  int timer_slack_ = -1;  // nanoseconds; -1: not looked at
};

}  // namespace

Messages::~Messages() {
  if (pending_.empty()) return;
  communicator_->give_up();
  if (communicator_->api().finalized()) return;
  for (auto& pending : pending_) communicator_->api().abandon(pending.request, pending.receiving);
}

Messages::Messages(Communicator& communicator, std::int64_t turn)
    : communicator_(&communicator),
      comm_(communicator.streams_[static_cast<std::size_t>(turn % communicator.streams())]) {}

void Messages::send(const void* data, std::size_t bytes, int to, Tag tag) {
  const Sends::Call call(communicator_->options().sends);
  for (std::size_t at = 0; at < bytes; at += kLongestMessage) {
    const auto count = static_cast<int>(std::min(kLongestMessage, bytes - at));
    const auto* from = static_cast<const std::byte*>(data) + at;
    pending_.push_back({communicator_->api().send(comm_, from, count, to, static_cast<int>(tag)), to, false});
  }
}

void Messages::receive(void* data, std::size_t bytes, int from, Tag tag) {
  for (std::size_t at = 0; at < bytes; at += kLongestMessage) {
    const auto count = static_cast<int>(std::min(kLongestMessage, bytes - at));
    auto* to = static_cast<std::byte*>(data) + at;
    pending_.push_back({communicator_->api().receive(comm_, to, count, from, static_cast<int>(tag)), from, true});
  }
}

bool Messages::done() {
  std::erase_if(pending_, [this](Pending& pending) { return communicator_->api().test(pending.request); });
  return pending_.empty();
}

void Messages::wait() {
  Patience patience(communicator_->options());
  for (auto before = pending_.size(); !done();) {
    if (pending_.size() != before) {
      before = pending_.size();
      patience.progressed();
    } else if (!patience.pause()) {
      throw Error(ErrorKind::timed_out, "nothing came for " +
                                            std::to_string(communicator_->options().limit.count() / 1000) + " s from " +
                                            peers() + ", as numbered in its group");
    }
  }
}

std::string Messages::peers() const {
  std::vector<int> ranks;
  for (const auto& pending : pending_) ranks.push_back(pending.peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += (rank == ranks.front() ? " " : ", ") + std::to_string(rank);
  return text;
}

Communicator::Communicator(Api& api, std::vector<Comm> streams, const WaitOptions& options)
    : api_(api),
      streams_(std::move(streams)),
      in_use_(static_cast<int>(streams_.size())),
      options_(options),
      rank_(api.rank(streams_.front())),
      size_(api.size(streams_.front())) {}

Communicator::~Communicator() {
  const bool lost = options_.liveness != nullptr && options_.liveness->any_lost();
  if (!healthy_ || lost || api_.finalized()) return;
  try {
    for (const auto comm : streams_) api_.free(comm);
  } catch (const Error&) {
    // It is of no use any more in either case.
  }
}

void Communicator::barrier() {
  std::byte nothing{}, token{};
  for (int distance = 1; distance < size_; distance *= 2) {
    Messages messages(*this);
    messages.receive(&token, 1, (rank_ - distance + size_) % size_, Tag::barrier);
    messages.send(&nothing, 1, (rank_ + distance) % size_, Tag::barrier);
    messages.wait();
  }
}

// Bruck's algorithm: after each round a rank holds the blocks of twice as many that follow it.
void Communicator::gather_small(void* blocks, std::size_t bytes) {
  auto* base = static_cast<std::byte*>(blocks);
  for (int held = 1; held < size_; held *= 2) {
    const auto count = static_cast<std::size_t>(std::min(held, size_ - held)) * bytes;
    Messages messages(*this);
    messages.receive(base + static_cast<std::size_t>(held) * bytes, count, (rank_ + held) % size_, Tag::gather);
    messages.send(base, count, (rank_ - held + size_) % size_, Tag::gather);
    messages.wait();
  }
}

}  // namespace perseus::mpi
