// Runs transfers between hosts on a thread of their own.
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

// A thread that runs jobs one after the other, while its owner works within the host.
class CommunicationThread {
 public:
  using Job = std::function<Status()>;

  CommunicationThread();
  // Runs all posted jobs before it returns.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  // Queues a job and returns its number; jobs are numbered from 0. After a job has failed, the later jobs fail with the
  // same status without being started.
  std::int64_t post(Job job);
  // Blocks until the job has ended, also because of a lost peer. Returns the first failure so far.
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

// The jobs that one collective has posted. The jobs use the collective's memory, so the destructor waits for them.
class Posted {
 public:
  Posted() = default;
  ~Posted() { (void)wait(); }
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  std::int64_t post(CommunicationThread& thread, CommunicationThread::Job job) {
    return last_[&thread] = thread.post(std::move(job));
  }
  // Blocks until all jobs have ended. Returns the first failure.
  Status wait() {
    Status first;
    for (const auto& [thread, job] : last_) {
      if (auto status = thread->wait(job); first.ok()) first = std::move(status);
    }
    return first;
  }

 private:
  std::map<CommunicationThread*, std::int64_t> last_;
};

}  // namespace perseus::hierarchy
