// A thread that carries out what goes between hosts, one thing after the other, while its owner works within the host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

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

}  // namespace perseus::hierarchy
