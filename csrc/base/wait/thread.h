// Starts threads.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace perseus {

// Throws Error(unavailable) if the process may not have a further thread.
template <class Function>
std::thread start_thread(Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::unavailable,
                std::string("no further thread can be started (") + error.what() +
                    "); raise the limit of processes (`ulimit -u`, or pids.max of the container), or the limit of the "
                    "address space (`ulimit -v`)");
  }
}

}  // namespace perseus
