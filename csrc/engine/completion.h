// The outcome of one work item: the engine sets it once, and the caller waits for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory/lent_memory.h"
#include "base/shape.h"
#include "base/wait/futex.h"

namespace perseus {

struct OnDevice;  // on_device.h

// A result that the core allocates, because its size is known only when all ranks have submitted.
class Result {
 public:
  // Throws Error(unavailable) if there is no memory.
  Result(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
    data_ = {allocate_lent(bytes()), &free_lent};
    if (!data_) {
      throw Error(ErrorKind::unavailable, "no memory for a result of " + std::to_string(bytes()) + " bytes");
    }
  }

  // Wraps memory of an accelerator.
  Result(DType dtype, Shape shape, std::shared_ptr<void> data, int device)
      : dtype_(dtype), shape_(std::move(shape)), data_(std::move(data)), device_(device) {}

  void* data() const { return data_.get(); }
  int device() const { return device_; }  // -1: host memory
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t bytes() const { return static_cast<std::size_t>(count_of(shape_)) * size_of(dtype_); }

 private:
  DType dtype_;
  Shape shape_;
  std::shared_ptr<void> data_;
  int device_ = -1;
};

class Completion {
 public:
  Completion() = default;
  ~Completion() {
    if (auto* after = after_.load(std::memory_order_acquire); after != finished_mark()) delete after;
  }
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // Everything but the state is written before finish() and read after done().
  std::vector<std::shared_ptr<Result>> results;
  std::vector<std::int64_t> received_splits;  // rows, by rank
  std::shared_ptr<OnDevice> on_device;        // set for tensors on an accelerator
  // The work failed while a peer or a library may still use the caller's tensors: their memory must never be freed.
  bool memory_is_lent = false;
  std::int64_t number = 0;                     // join: the last rank; add_process_set: the id
  std::function<void(const Status&)> on_done;  // the driver calls it once, under its lock: be short

  bool done() const { return state_.load(std::memory_order_acquire) != 0; }
  const Status& status() const { return status_; }

  void finish(Status status) {
    status_ = std::move(status);
    // The callback is taken out first: once the state is set, the waiter may drop this object's last other owner.
    const auto callback = std::move(on_done);
    const std::unique_ptr<After> after(after_.exchange(finished_mark(), std::memory_order_acq_rel));
    state_.store(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(state_);
    if (callback) callback(status_);
    if (after) (*after)();
  }

  // Calls `after` once this is done: from the driver, as on_done, or from the caller if it is done already. Only the
  // first call registers its function. Thread-safe.
  void then(std::function<void()> after) {
    auto mine = std::make_unique<After>(std::move(after));
    After* expected = nullptr;
    if (after_.compare_exchange_strong(expected, mine.get(), std::memory_order_acq_rel)) {
      static_cast<void>(mine.release());
    } else if (expected == finished_mark()) {
      while (!done()) pause();  // waits for the short time between the exchange and the store above
      (*mine)();
    }
  }

  // Counts a thread that waits for this, however it waits, for as long as the object exists.
  class Waiter {
   public:
    explicit Waiter(Completion& completion) : waiters_(completion.waiters_) { waiters_.fetch_add(1); }
    ~Waiter() { waiters_.fetch_sub(1); }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    std::atomic<std::uint32_t>& waiters_;
  };
  bool has_waiters() const { return waiters_.load() != 0; }

  // Sleeps until this is done, for at most `limit`.
  void wait(std::chrono::microseconds limit) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (state_.load(std::memory_order_seq_cst) == 0) futex_wait(state_, 0, limit);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  using After = std::function<void()>;
  // Marks that it is too late to register a callback.
  static After* finished_mark() {
    static char mark;
    return reinterpret_cast<After*>(&mark);
  }

  std::atomic<After*> after_{nullptr};
  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::atomic<std::uint32_t> waiters_{0};
  Status status_;
};

}  // namespace perseus
