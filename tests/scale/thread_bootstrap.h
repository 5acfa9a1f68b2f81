// A bootstrap of ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace perseus::scale {

// Exchanges the bytes of ranks that are threads. A rank that takes no part has none.
class Exchange {
 public:
  Exchange(int size, std::size_t taking_part)
      : size_(size), taking_part_(taking_part), texts_(static_cast<std::size_t>(size)) {}
  std::vector<std::string> allgather(int rank, std::string_view mine) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<std::size_t>(rank)] = mine;
    if (++arrived_ == taking_part_) {
      arrived_ = 0;
      ++round_;
      gathered_ = std::exchange(texts_, std::vector<std::string>(texts_.size()));
      all_.notify_all();
    } else {
      all_.wait(lock, [this, round = round_] { return round_ != round; });
    }
    return gathered_;
  }
  int size() const { return size_; }

 private:
  int size_;
  std::size_t taking_part_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable all_;
  std::size_t arrived_ = 0, round_ = 0;
  std::vector<std::string> texts_, gathered_;
};

class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(int rank, Exchange& exchange) : rank_(rank), exchange_(exchange) {}
  std::string_view name() const override { return "simulated"; }
  int rank() const override { return rank_; }
  int size() const override { return exchange_.size(); }
  std::vector<std::string> allgather(std::string_view mine) override { return exchange_.allgather(rank_, mine); }

 private:
  int rank_;
  Exchange& exchange_;
};

}  // namespace perseus::scale
