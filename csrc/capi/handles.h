// Requests whose caller waits for a handle: the functions start, wait, is_done and drop of perseus.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "capi/perseus.h"
#include "engine/session/session.h"

namespace perseus {

// A request in progress, as native code holds it.
struct NativeHandle {
  Handle handle;
  // No thread was woken for the work: a caller that waits drives the engine, and any other user calls notify() first.
  // Atomic, because several threads may wait for one handle.
  std::atomic<bool> quiet{false};

  void notify() {
    if (quiet.exchange(false)) handle.wake();
  }
};

std::int32_t start(const PerseusRequest* request, const char* call, std::int32_t begin, void** handle, char* message,
                   std::size_t capacity);
std::int32_t wait(void* handle, std::int64_t limit_nanoseconds);
std::int32_t is_done(void* handle);
void drop(void* handle, PerseusDone done, void* context);

}  // namespace perseus
