#include "transport/xccl/communicator.h"

#include <algorithm>
#include <string>
#include <thread>

#include "base/error.h"

namespace perseus::xccl {
namespace {

// The longest pause between checks of the device and the peers.
constexpr std::chrono::microseconds kLongestPause{200};
// Some libraries wait for the peers when a communicator is destroyed.
constexpr std::chrono::seconds kDestroyTimeout{2};
// The longest wait for an abort, which waits for the device. If the device hangs, the abort never ends.
constexpr std::chrono::seconds kAbortTimeout{10};

}  // namespace

Communicator::Communicator(std::shared_ptr<const Library> library, std::shared_ptr<Device> device, const UniqueId& id,
                           int rank, int size, Liveness& liveness, const Options& options)
    : library_(std::move(library)),
      device_(std::move(device)),
      rank_(rank),
      size_(size),
      liveness_(liveness),
      queue_only_(options.queue_only),
      caller_(std::make_unique<Caller>()) {
  start(id, options.start_timeout);
  if (library_->traits.blocking) return;
  caller_.reset();
  if (library_->call.comm_abort == nullptr) return;
  abort_group_ = options.abort_group ? options.abort_group : AbortGroup::make(liveness_);
  abort_group_->add(handle_);
}

// Makes the communicator. The library waits for all ranks: in the background, or in a call that cannot be interrupted.
void Communicator::start(const UniqueId& id, std::chrono::milliseconds limit) {
  struct Made {
    std::shared_ptr<Device> device;
    UniqueId id;
    CommConfig config = {};
    Comm comm = nullptr;
  };
  const auto made = std::make_shared<Made>(Made{device_, id});
  made->config.blocking = 0;
  const auto call = [made, library = library_, size = static_cast<std::size_t>(size_), rank = rank_] {
    made->device->activate();
    if (!library->traits.background_calls) return library->call.comm_init_rank(&made->comm, size, made->id, rank);
    return library->call.comm_init_rank_config(&made->comm, size, made->id, rank, &made->config);
  };
  const auto end = std::chrono::steady_clock::now() + limit;
  const auto poll = [&] {
    liveness_.status().throw_if_failed();
    if (std::chrono::steady_clock::now() < end) return;
    throw Error(
        ErrorKind::timed_out,
        library_->title() + " did not connect " + std::to_string(size_) + " ranks within " +
            std::to_string(limit.count() / 1000) +
            " s (PERSEUS_START_TIMEOUT); check that the ranks reach each other over the interfaces that it has chosen");
  };
  int code = caller_->run(call, poll);
  handle_ = std::make_shared<CommHandle>(library_, device_, made->comm);
  if (library_->traits.background_calls && code == library_->traits.in_progress) code = await_start(poll);
  try {
    library_->check(code, "CommInitRank");
  } catch (const Error& error) {
    throw Error(error.kind(), error.what() + (library_->advice.empty() ? "" : ". " + library_->advice));
  }
}

// Waits until the library has connected the ranks, and returns its code. A communicator that fails has no other user,
// so it is aborted alone.
int Communicator::await_start(const std::function<void()>& poll) {
  int state = library_->traits.in_progress;
  try {
    while (state == library_->traits.in_progress) {
      std::this_thread::sleep_for(kLongestPause);
      poll();
      library_->check(library_->call.comm_get_async_error(handle_->comm(), &state), "CommGetAsyncError");
    }
  } catch (const Error& error) {
    AbortGroup::abort(handle_, error.what());
    throw;
  }
  if (state != kSuccess) AbortGroup::abort(handle_, library_->title() + " did not connect the ranks");
  return state;
}

Communicator::~Communicator() {
  if (has_abandoned_call()) return;
  std::shared_ptr<void> current;
  try {
    current = device_->use();
  } catch (const Error&) {
    // The device has failed; the communicator must be destroyed even so.
  }
  if (liveness_.any_lost()) abort(liveness_.status().text());
  if (!handle_->close()) {
    if (abort_group_) handle_->await_end(std::chrono::steady_clock::now() + kAbortTimeout);
    return;
  }
  auto* const comm = handle_->comm();
  for (const auto& [key, op] : own_ops_) library_->call.red_op_destroy(op, comm);
  // A failure here is ignored, because no caller is left.
  const auto destroy = [comm, keep = library_] { return keep->call.comm_destroy(comm); };
  try {
    if (caller_) {
      const auto end = std::chrono::steady_clock::now() + kDestroyTimeout;
      caller_->run(destroy, [&] {
        liveness_.status().throw_if_failed();
        if (std::chrono::steady_clock::now() > end) throw Error(ErrorKind::timed_out, "not destroyed in time");
      });
    } else {
      destroy();
    }
  } catch (const Error&) {
    // The call is abandoned.
  }
}

void Communicator::abort(const std::string& why) {
  if (abort_group_) {
    abort_group_->abort(why);
  } else {
    handle_->close();
  }
}

void Communicator::throw_aborted() const {
  liveness_.status().throw_if_failed();
  const auto why = abort_group_ ? abort_group_->why() : "";
  throw Error(ErrorKind::transport, library_->title() + " was aborted after a failure on " + device_->name() +
                                        (why.empty() ? "; the first error of this rank has the cause" : ": " + why));
}

void Communicator::run_call(const char* function, std::function<int()> call) {
  const CommHandle::Call in_call(*handle_);
  if (!in_call.begun()) throw_aborted();
  finish_call(function, caller_ ? caller_->run(std::move(call), [this] { check(); }) : call());
}

// Waits for a call that the library continues in the background. An abort ends the wait before it ends the call.
void Communicator::finish_call(const char* function, int code) {
  if (!library_->traits.background_calls || code != library_->traits.in_progress) return check_code(function, code);
  for (auto pause = std::chrono::microseconds(1); is_in_progress(function);
       pause = std::min(pause * 2, kLongestPause)) {
    std::this_thread::sleep_for(pause);
  }
}

// A lost peer or an abort is the usual cause of a failure, and its text is more useful.
void Communicator::check_code(const char* function, int code) {
  if (code == kSuccess || code == library_->traits.in_progress) return;
  if (liveness_.any_lost() || handle_->is_closed()) throw_aborted();
  library_->check(code, function, handle_->comm());
}

Communicator::Group::Group(Communicator& through) : through_(through), call_(*through.handle_) {
  if (!through.library_->traits.point_to_point) return;
  if (!call_.begun()) through.throw_aborted();
  through.check_code("GroupStart", through.library_->call.group_start());
  open_ = true;
}

// Ignores the result, because the group is closed after a failure.
Communicator::Group::~Group() {
  if (open_) through_.library_->call.group_end();
}

void Communicator::Group::end() {
  if (!open_) return;
  open_ = false;
  through_.finish_call("GroupEnd", through_.library_->call.group_end());
}

Op Communicator::pre_mul_sum(DataType type, double factor, void* scalar) {
  const auto [found, is_new] = own_ops_.try_emplace({type, factor}, kSum);
  if (is_new) {
    try {
      run("RedOpCreatePreMulSum", [&, op = &found->second](const Functions& call, Comm comm) {
        return call.red_op_create_pre_mul_sum(op, scalar, type, kScalarOnHost, comm);
      });
    } catch (const Error&) {
      own_ops_.erase(found);
      throw;
    }
  }
  return found->second;
}

void Communicator::deregister(void* registered) {
  device_->finish();
  const auto locked = lock();
  const CommHandle::Call in_call(*handle_);
  if (in_call.begun()) library_->call.comm_deregister(handle_->comm(), registered);
}

void Communicator::check() { is_in_progress("CommGetAsyncError"); }

// Throws the failure of work in progress, which `function` has begun, after aborting it.
bool Communicator::is_in_progress(const char* function) {
  if (liveness_.any_lost()) abort(liveness_.status().text());
  const CommHandle::Call in_call(*handle_);
  if (!in_call.begun()) throw_aborted();
  const auto get = library_->call.comm_get_async_error;
  if (get == nullptr || library_->traits.blocking) return false;
  int state = kSuccess;
  library_->check(get(handle_->comm(), &state), "CommGetAsyncError", handle_->comm());
  if (state == kSuccess || state == library_->traits.in_progress) return state != kSuccess;
  try {
    library_->check(state, function, handle_->comm());
  } catch (const Error& error) {
    abort(error.what());
    throw;
  }
  return false;
}

void Communicator::wait() {
  if (queue_only_) return;
  for (auto pause = std::chrono::microseconds(1); !device_->done(); pause = std::min(pause * 2, kLongestPause)) {
    check();
    std::this_thread::sleep_for(pause);
  }
  // An abort by any thread also completes the stream.
  if (!library_->traits.blocking) check();
}

}  // namespace perseus::xccl
