// Runs calls that may block forever on another thread, so that the waiting thread can abandon them.
#pragma once

#include <functional>
#include <memory>

namespace perseus::xccl {

// A thread for calls that may block forever. One thread at a time uses it. An abandoned call keeps its thread and what
// it holds, and no further call can be made.
class Caller {
 public:
  Caller();
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // Runs `call` and returns its result. `poll` is called every few milliseconds meanwhile; if it throws, the call is
  // abandoned.
  int run(std::function<int()> call, const std::function<void()>& poll);

  bool abandoned() const { return abandoned_; }

  // Returns true if a call was ever abandoned in this process, which leaves the library in an unknown state.
  static bool any_abandoned();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
  bool abandoned_ = false;
};

}  // namespace perseus::xccl
