// Lets all ranks fail if one of them cannot make something, so that none waits for a rank that has given up.
#pragma once

#include <new>
#include <string>

#include "base/error.h"
#include "transport/fabric.h"

namespace perseus {

// Calls `make` on all ranks of `exchange`, and returns its result. If a rank has no memory, no thread or no library for
// it, all ranks throw Error(unavailable) with that rank's text. Other errors, such as the loss of a rank, are noticed
// by all ranks anyway.
template <class Make>
auto all_or_none(int world_rank, const BootstrapAllgather& exchange, const Make& make) -> decltype(make()) {
  const auto rank = "rank " + std::to_string(world_rank);
  decltype(make()) made{};
  std::string failure;
  try {
    made = make();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unavailable) throw;
    failure = error.what();
    if (failure.find("rank ") == std::string::npos) failure = rank + ": " + failure;
  } catch (const std::bad_alloc&) {
    failure = rank + " has no memory left";
  }
  for (const auto& text : exchange(failure)) {
    if (!text.empty()) throw Error(ErrorKind::unavailable, text);
  }
  return made;
}

}  // namespace perseus
