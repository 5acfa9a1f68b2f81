#include "engine/engine_threads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/wait/blocking.h"
#include "base/wait/thread.h"

namespace perseus {

namespace {

constexpr std::chrono::seconds kLongestIdle{1};  // the time after which a thread ends that is not the only idle one

void bind_to_core(int core) {
  if (core < 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  int error = EINVAL;
  if (core < CPU_SETSIZE) {
    CPU_SET(core, &only);
    error = pthread_setaffinity_np(pthread_self(), sizeof only, &only);
  }
  if (error == 0) return;
  log(LogLevel::warning, "PERSEUS_THREAD_AFFINITY: the engine's thread cannot be bound to core " +
                             std::to_string(core) + ": " + system_error_text(error));
}

}  // namespace

void prepare_engine_thread(const char* name, int core) {
  pthread_setname_np(pthread_self(), name);
  bind_to_core(core);
  // The default slack of 50 microseconds is longer than the whole batching delay.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
}

EngineThreads::~EngineThreads() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  dispatcher_wanted_.notify_all();
  ready_.doorbell().notify();
  for (auto& thread : threads_) thread.join();
  for (auto& thread : ended_) thread.join();
}

void EngineThreads::add(ServedEngine& engine) {
  const std::scoped_lock lock(mutex_);
  if (threads_.empty()) start();
  const auto number = next_number_++ % ReadySet::kNumbers;
  auto& entry = entries_.try_emplace(&engine, Entry{engine, number, due_.end()}).first->second;
  by_number_.emplace(number, &entry);
  engine.doorbell().join(ready_, number);
  schedule(entry, Clock::now());
  ready_.doorbell().notify();
}

void EngineThreads::remove(ServedEngine& engine) {
  Lock lock(mutex_);
  const auto found = entries_.find(&engine);
  if (found == entries_.end()) return;
  auto& entry = found->second;
  entry.is_removed = true;
  served_.wait(lock, [&] { return !entry.is_served; });
  if (entry.due != due_.end()) due_.erase(entry.due);
  auto [at, end] = by_number_.equal_range(entry.number);
  while (at->second != &entry) ++at;
  by_number_.erase(at);
  entries_.erase(&engine);
}

// The caller holds the mutex, so the new thread waits until its own place in the list is complete.
void EngineThreads::start() {
  for (auto& thread : ended_) thread.join();
  ended_.clear();
  const auto self = threads_.emplace(threads_.end());
  try {
    *self = start_thread([this, self] { run(self); });
  } catch (const Error&) {
    threads_.erase(self);
    throw;
  }
}

void EngineThreads::run(std::list<std::thread>::iterator self) {
  prepare_engine_thread("perseus-engines", core_);
  const BlockingHook hook([this] { replace_dispatcher(); });
  ThreadPolicy::Applied applied;
  Lock lock(mutex_);
  while (wait_until_dispatcher(lock)) dispatch(lock, applied);
  if (stop_) return;
  ended_.push_back(std::move(*self));
  threads_.erase(self);
}

// Returns true once this thread is the dispatcher, and false if it is to end.
bool EngineThreads::wait_until_dispatcher(Lock& lock) {
  const auto is_wanted = [this] { return stop_ || dispatcher_ == std::thread::id(); };
  ++idle_threads_;
  bool in_time = true;
  while (in_time && !is_wanted()) {
    if (idle_threads_ == 1) {
      dispatcher_wanted_.wait(lock);
    } else {
      in_time = dispatcher_wanted_.wait_for(lock, kLongestIdle, is_wanted) || idle_threads_ == 1;
    }
  }
  --idle_threads_;
  if (stop_ || !in_time) return false;
  dispatcher_ = std::this_thread::get_id();
  return true;
}

// Returns once this thread is no longer the dispatcher.
void EngineThreads::dispatch(Lock& lock, ThreadPolicy::Applied& applied) {
  while (!stop_ && is_dispatcher()) {
    const auto seen = ready_.doorbell().notifications();
    const auto now = Clock::now();
    policy_.apply(now, applied);
    ready_.take([&](std::uint32_t number) {
      const auto [begin, end] = by_number_.equal_range(number);
      for (auto each = begin; each != end; ++each) schedule(*each->second, now);
    });
    if (!due_.empty() && due_.begin()->first <= now) {
      serve(lock, *due_.begin()->second);
      continue;
    }
    const auto limit =
        due_.empty() ? ServedEngine::kForever : std::chrono::ceil<std::chrono::microseconds>(due_.begin()->first - now);
    lock.unlock();
    ready_.doorbell().wait(seen, Sleeper::engine, limit);
    lock.lock();
  }
}

// A thread that is no longer the dispatcher goes on with its engine while that is busy.
void EngineThreads::serve(Lock& lock, Entry& entry) {
  due_.erase(std::exchange(entry.due, due_.end()));
  entry.is_served = true;
  auto next = std::chrono::microseconds(0);
  do {
    entry.is_notified = false;
    lock.unlock();
    next = entry.engine.serve();
    lock.lock();
    if (entry.is_notified) next = std::chrono::microseconds(0);
  } while (next.count() == 0 && !is_dispatcher() && !entry.is_removed);
  entry.is_served = false;
  if (entry.is_removed) return served_.notify_all();
  if (next >= ServedEngine::kForever) return;
  schedule(entry, Clock::now() + next);
  // The dispatcher may sleep for longer.
  if (!is_dispatcher() && entry.due == due_.begin()) ready_.doorbell().notify();
}

// An engine may be notified after it has handed its doorbell back, while its thread has yet to return from serve().
void EngineThreads::schedule(Entry& entry, Clock::time_point due) {
  entry.is_notified = entry.is_served;
  if (entry.is_served || entry.is_removed) return;
  if (entry.due != due_.end()) {
    if (entry.due->first <= due) return;
    due_.erase(entry.due);
  }
  entry.due = due_.emplace(due, &entry);
}

// Without a further thread, engines would wait for one another, and the job might hang.
void EngineThreads::replace_dispatcher() {
  Lock lock(mutex_);
  if (!is_dispatcher()) return;
  if (idle_threads_ == 0) {
    try {
      start();
    } catch (const Error& error) {
      const bool has_others = entries_.size() > 1;
      if (!has_others || std::exchange(has_failed_, true)) return;
      lock.unlock();
      return on_failure_(error.what());
    }
  }
  dispatcher_ = {};
  dispatcher_wanted_.notify_one();
}

}  // namespace perseus
