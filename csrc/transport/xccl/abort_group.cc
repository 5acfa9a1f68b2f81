#include "transport/xccl/abort_group.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace perseus::xccl {
namespace {

using Handles = std::vector<std::shared_ptr<CommHandle>>;

// A call that takes longer probably waits for a lost peer. A call that was revoked returns within this time, too.
constexpr std::chrono::seconds kCallLimit{2};

// Runs `work` on a detached thread, because the library's abort may never return if the device hangs.
template <class Work>
void start_detached(Work work) {
  try {
    std::thread([work = std::move(work)] {
      pthread_setname_np(pthread_self(), "perseus-abort");
      work();
    }).detach();
  } catch (const std::system_error& error) {
    log(LogLevel::error, std::string("communicators cannot be aborted, because no thread can be started: ") +
                             error.what() + "; end this process if it does not end itself");
  }
}

void abort_in_group(const Handles& handles) {
  const auto& call = handles.front()->library().call;
  call.group_start();
  for (const auto& handle : handles) handle->abort();
  call.group_end();
}

// Aborts each communicator on a thread of its own, because each abort may wait for the others.
void abort_in_parallel(const Handles& handles) {
  std::vector<std::thread> threads;
  threads.reserve(handles.size() - 1);
  for (std::size_t i = 1; i < handles.size(); ++i) {
    threads.emplace_back([handle = handles[i]] { handle->abort(); });
  }
  handles.front()->abort();
  for (auto& thread : threads) thread.join();
}

// The process ends as after a time-out of torch's NCCL group: an abort would free memory that the call still uses.
[[noreturn]] void end_process(const Library& library, const std::string& why) {
  log(LogLevel::error, why + ". A call of " + library.title() + " has not returned for " +
                           std::to_string(kCallLimit.count()) +
                           " s since then and cannot be ended without freeing memory that it uses, so this process "
                           "ends. NCCL 2.18 and later end calls that connect, and NCCL 2.29 and later all calls, "
                           "unless NCCL_COMM_BLOCKING is 1");
  std::_Exit(EXIT_FAILURE);
}

// Ends a call that waits for a lost peer by revoking its communicator, and then aborts the communicator. If the library
// cannot do that, the process ends.
void end_call_and_abort(CommHandle& handle, const std::string& why) {
  const auto& call = handle.library().call;
  const bool is_revoked = call.comm_revoke != nullptr && call.comm_revoke(handle.comm(), kRevokeDefault) == kSuccess;
  if (!is_revoked || !handle.await_calls(std::chrono::steady_clock::now() + kCallLimit)) {
    end_process(handle.library(), why);
  }
  handle.abort();
  handle.set_ended();
}

void abort_idle(const Handles& handles) {
  if (handles.empty()) return;
  if (handles.size() > 1 && handles.front()->library().traits.groups_aborts) {
    abort_in_group(handles);
  } else {
    abort_in_parallel(handles);
  }
  for (const auto& handle : handles) handle->set_ended();
}

void abort_all(const Handles& handles, const std::string& why) {
  const auto until = std::chrono::steady_clock::now() + kCallLimit;
  Handles idle;
  for (const auto& handle : handles) {
    if (handle->await_calls(until)) {
      idle.push_back(handle);
    } else {
      start_detached([handle, why] { end_call_and_abort(*handle, why); });
    }
  }
  abort_idle(idle);
}

void start_abort(Handles handles, const std::string& why) {
  start_detached([handles = std::move(handles), why] { abort_all(handles, why); });
}

}  // namespace

bool CommHandle::enter() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return false;
  ++calls_;
  return true;
}

void CommHandle::leave() {
  const std::scoped_lock lock(mutex_);
  --calls_;
  changed_.notify_all();
}

bool CommHandle::close() {
  const std::scoped_lock lock(mutex_);
  return !std::exchange(closed_, true);
}

bool CommHandle::is_closed() const {
  const std::scoped_lock lock(mutex_);
  return closed_;
}

bool CommHandle::await_calls(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [this] { return calls_ == 0; });
}

void CommHandle::abort() {
  try {
    device_->activate();
  } catch (const Error&) {
    // The device has failed; the communicator must be aborted even so.
  }
  library_->call.comm_abort(comm_);
}

// Releases the device first: whoever waits for the end may destroy it then.
void CommHandle::set_ended() {
  const std::scoped_lock lock(mutex_);
  device_.reset();
  ended_ = true;
  changed_.notify_all();
}

void CommHandle::await_end(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [this] { return ended_; });
}

std::shared_ptr<AbortGroup> AbortGroup::make(Liveness& liveness) {
  auto group = std::make_shared<AbortGroup>();
  liveness.on_lost([&liveness, weak = std::weak_ptr(group)] {
    if (const auto still_there = weak.lock()) still_there->abort(liveness.status().text());
  });
  return group;
}

void AbortGroup::add(const std::shared_ptr<CommHandle>& handle) {
  {
    const std::scoped_lock lock(mutex_);
    if (!aborted_) {
      std::erase_if(handles_, [](const auto& each) { return each.expired(); });
      handles_.push_back(handle);
      return;
    }
  }
  abort(handle, why());
}

void AbortGroup::abort(const std::shared_ptr<CommHandle>& handle, const std::string& why) {
  if (handle->close()) start_abort({handle}, why);
}

std::string AbortGroup::why() const {
  const std::scoped_lock lock(mutex_);
  return why_;
}

void AbortGroup::abort(const std::string& why) {
  std::vector<std::weak_ptr<CommHandle>> all;
  {
    const std::scoped_lock lock(mutex_);
    if (!aborted_) why_ = why;
    aborted_ = true;
    all.swap(handles_);
  }
  Handles mine;
  for (const auto& each : all) {
    if (auto handle = each.lock(); handle && handle->close()) mine.push_back(std::move(handle));
  }
  if (!mine.empty()) start_abort(std::move(mine), why);
}

}  // namespace perseus::xccl
