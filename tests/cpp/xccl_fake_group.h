// Connects the ranks of the fake library's communicators, which are threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace perseus::testing {

// One rank's arguments of a collective.
struct FakeCall {
  std::function<std::string(const std::vector<FakeCall>& all, int rank)> result;
  const void* in = nullptr;
  void* out = nullptr;
};

// The ranks of one communicator.
class FakeGroup {
 public:
  explicit FakeGroup(int size) : calls_(static_cast<std::size_t>(size)) {}

  // Gathers every rank's call, by rank. Returns false if aborted.
  bool meet(int rank, const FakeCall& mine, std::vector<FakeCall>& all) {
    {
      const std::scoped_lock lock(mutex_);
      calls_[static_cast<std::size_t>(rank)] = mine;
    }
    if (!barrier()) return false;
    {
      const std::scoped_lock lock(mutex_);
      all = calls_;
    }
    return barrier();
  }

  bool barrier() {
    std::unique_lock lock(mutex_);
    const auto round = round_;
    if (++arrived_ == calls_.size()) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || aborted_; });
    return !aborted_;
  }

  void put(int from, int to, std::string bytes) {
    const std::scoped_lock lock(mutex_);
    messages_[{from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }

  bool take(int from, int to, std::string& bytes) {
    std::unique_lock lock(mutex_);
    auto& queue = messages_[{from, to}];
    changed_.wait(lock, [&] { return !queue.empty() || aborted_; });
    if (aborted_) return false;
    bytes = std::move(queue.front());
    queue.pop_front();
    return true;
  }

  void wait_for_abort() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_; });
  }

  void abort() {
    const std::scoped_lock lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<FakeCall> calls_;
  std::map<std::pair<int, int>, std::deque<std::string>> messages_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  bool aborted_ = false;
};

class FakeGroups {
 public:
  int next_id() {
    const std::scoped_lock lock(mutex_);
    return ++last_id_;
  }
  std::shared_ptr<FakeGroup> join(int id, int size) {
    const std::scoped_lock lock(mutex_);
    auto& group = groups_[id];
    if (!group) group = std::make_shared<FakeGroup>(size);
    return group;
  }
  void abort_all() {
    const std::scoped_lock lock(mutex_);
    for (const auto& [id, group] : groups_) group->abort();
    groups_.clear();
  }

 private:
  std::mutex mutex_;  // guards the rest
  int last_id_ = 0;
  std::map<int, std::shared_ptr<FakeGroup>> groups_;
};

}  // namespace perseus::testing
