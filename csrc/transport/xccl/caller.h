// A thread for calls that may block for ever: the one that waits can give them up.
#pragma once

#include <functional>
#include <memory>

namespace perseus::xccl {

// Used by one thread at a time. A call that was given up stays where it is: its thread is left behind with what it
// holds, and no further call can be made.
class Caller {
 public:
  Caller();
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // The call's result. `look` is called every few milliseconds meanwhile; what it throws gives the call up.
  int run(std::function<int()> call, const std::function<void()>& look);

  bool given_up() const { return given_up_; }

  // Whether a thread was ever left behind in this process: the library is in a state that nobody knows.
  static bool left_any_behind();

 private:
  struct Desk;
  std::shared_ptr<Desk> desk_;  // shared with the thread, which may outlive this
  bool given_up_ = false;
};

}  // namespace perseus::xccl
