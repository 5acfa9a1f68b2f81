// A thread that carries out what goes between hosts, one thing after the other, while its owner works within the host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"

namespace perseus::hierarchy {

class Wire {
 public:
  using Job = std::function<Status()>;

  Wire();
  // What has been posted is carried out first.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // Jobs have numbers in their order, from 0. After one that has failed the rest fail likewise, and are not begun.
  std::int64_t post(Job job);
  // Waits until the job has ended, which a lost peer brings about as well; gives the first failure so far.
  Status wait(std::int64_t job);

 private:
  void run();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::int64_t posted_ = 0, ended_ = 0;
  Status failure_;
  bool closing_ = false;
  std::thread thread_;
};

// What a collective has posted to wires: it uses the memory of that, so it ends before it.
class Posted {
 public:
  Posted() = default;
  ~Posted() { (void)wait(); }
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  std::int64_t post(Wire& wire, Wire::Job job) { return last_[&wire] = wire.post(std::move(job)); }
  // Until all of it has ended; gives the first failure.
  Status wait() {
    Status first;
    for (const auto& [wire, job] : last_) {
      if (auto status = wire->wait(job); first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  std::map<Wire*, std::int64_t> last_;
};

}  // namespace perseus::hierarchy
