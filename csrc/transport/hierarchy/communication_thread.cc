#include "transport/hierarchy/communication_thread.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "base/wait/blocking.h"
#include "base/wait/thread.h"

namespace perseus::hierarchy {

CommunicationThread::CommunicationThread() : thread_(start_thread([this] { run(); })) {}

CommunicationThread::~CommunicationThread() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::int64_t CommunicationThread::post(Job job) {
  std::int64_t number = 0;
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    number = posted_++;
  }
  changed_.notify_all();
  return number;
}

Status CommunicationThread::wait(std::int64_t job) {
  std::unique_lock lock(mutex_);
  if (ended_ > job) return failure_;
  lock.unlock();
  before_blocking();
  lock.lock();
  changed_.wait(lock, [&] { return ended_ > job; });
  return failure_;
}

void CommunicationThread::run() {
  pthread_setname_np(pthread_self(), "perseus-rail");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !jobs_.empty() || closing_; });
    if (jobs_.empty()) return;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    Status status = failure_;
    if (status.ok()) {
      lock.unlock();
      try {
        status = job();
      } catch (const std::exception& error) {
        status = {ErrorKind::transport, error.what()};
      }
      lock.lock();
    }
    failure_ = std::move(status);
    ++ended_;
    changed_.notify_all();
  }
}

}  // namespace perseus::hierarchy
