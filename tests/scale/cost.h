// Counts what the ranks of a simulated job send to ranks of other hosts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <mutex>
#include <set>
#include <vector>

namespace perseus::scale {

// The messages between hosts, and the processor time, of one rank.
struct Cost {
  int sent = 0;
  int received = 0;
  std::size_t bytes_sent = 0, bytes_received = 0;
  std::set<int> peers = {};          // ranks with which it has exchanged messages
  std::chrono::nanoseconds time{0};  // of rank 0 only

  int messages() const { return sent + received; }
  int connections() const { return static_cast<int>(peers.size()); }
  std::size_t bytes() const { return bytes_sent + bytes_received; }
};

// The costs of all ranks of a job. Thread-safe, except for the functions that return costs.
class Costs {
 public:
  Costs(int size, int ranks_per_host) : ranks_per_host_(ranks_per_host), costs_(static_cast<std::size_t>(size)) {}

  int size() const { return static_cast<int>(costs_.size()); }
  int ranks_per_host() const { return ranks_per_host_; }
  int host_of(int rank) const { return rank / ranks_per_host_; }
  std::vector<int> hosts() const {
    std::vector<int> hosts;
    for (int rank = 0; rank < size(); ++rank) hosts.push_back(host_of(rank));
    return hosts;
  }

  void add_messages(int from, int to, int count, std::size_t bytes) {
    if (host_of(from) == host_of(to)) return;
    const std::scoped_lock lock(mutex_);
    auto &source = costs_[static_cast<std::size_t>(from)], &target = costs_[static_cast<std::size_t>(to)];
    source.sent += count;
    target.received += count;
    source.bytes_sent += bytes;
    target.bytes_received += bytes;
    add_connection(source, target, from, to);
  }
  void add_connection(int from, int to) {
    const std::scoped_lock lock(mutex_);
    add_connection(costs_[static_cast<std::size_t>(from)], costs_[static_cast<std::size_t>(to)], from, to);
  }
  // Calls the function, and adds its processor time on this thread if it is rank 0's.
  template <typename Function>
  void timed(int rank, const Function& function) {
    if (rank != 0) return function();
    const auto begin = thread_time();
    function();
    costs_.front().time += thread_time() - begin;
  }
  void reset() { costs_.assign(costs_.size(), {}); }

  const Cost& root() const { return costs_.front(); }
  // Return the most of any rank besides the root.
  int most_messages() const { return most(&Cost::messages); }
  int most_connections() const { return most(&Cost::connections); }

 private:
  static void add_connection(Cost& source, Cost& target, int from, int to) {
    source.peers.insert(to);
    target.peers.insert(from);
  }
  int most(int (Cost::*what)() const) const {
    int most = 0;
    for (std::size_t rank = 1; rank < costs_.size(); ++rank) most = std::max(most, (costs_[rank].*what)());
    return most;
  }
  static std::chrono::nanoseconds thread_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  int ranks_per_host_;
  std::mutex mutex_;  // guards costs_
  std::vector<Cost> costs_;
};

}  // namespace perseus::scale
