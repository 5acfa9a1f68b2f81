// Makes MPI calls that wait for other ranks and cannot check whether they live. Such a call runs on its own thread,
// which is abandoned if a rank is lost, or after a limit. An mpirun ends ranks that wait for one that has ended, but
// not ranks that wait for a host that is cut off from theirs.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/wait/thread.h"
#include "bootstrap/watch/liveness.h"

namespace perseus::mpi {

// The limits of a call.
struct CallLimit {
  std::chrono::milliseconds limit{0};                         // 0: none
  std::string what = "MPI's communicators were not created";  // the beginning of texts
  std::chrono::milliseconds warning{0};                       // after this time, a warning; 0: none
  std::string text_after(std::chrono::milliseconds time) const {
    return what + " within " + std::to_string(time.count() / 1000) +
           " s. Check whether a rank has not started or has ended, or whether two hosts do not reach each other";
  }
};

// Runs `call` on a new thread and returns or throws what it does. `call` must own everything it uses. Throws
// Error(peer_lost) if a rank is lost, and Error(timed_out) after the limit.
template <class Result>
Result run_abandonable(const std::function<Result()>& call, const Liveness* liveness, const CallLimit& limit) {
  constexpr std::chrono::milliseconds kPollInterval{50};
  auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  start_thread([call, promise] {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  const auto begin = std::chrono::steady_clock::now();
  bool warns = limit.warning.count() > 0;
  while (result.wait_for(kPollInterval) != std::future_status::ready) {
    if (liveness != nullptr) liveness->status().throw_if_failed();
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (std::exchange(warns, warns && waited < limit.warning) && !warns) {
      log(LogLevel::warning, limit.text_after(limit.warning));
    }
    if (limit.limit.count() == 0 || waited < limit.limit) continue;
    throw Error(ErrorKind::timed_out, limit.text_after(limit.limit) + ". PERSEUS_START_TIMEOUT is the limit");
  }
  return result.get();
}

// Returns true if the call whose run_abandonable() has thrown this error may still run.
inline bool may_still_run(const Error& error) {
  return error.kind() == ErrorKind::timed_out || error.kind() == ErrorKind::peer_lost;
}

}  // namespace perseus::mpi
