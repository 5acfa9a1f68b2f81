#include "capi/handles.h"

#include <chrono>
#include <memory>
#include <string>

#include "capi/callbacks.h"
#include "capi/requests.h"
#include "engine/session/runtime.h"

namespace perseus {

namespace {

NativeHandle& native(void* handle) { return *static_cast<NativeHandle*>(handle); }

Notify notify_of(std::int32_t begin) {
  switch (begin) {
    case PERSEUS_BEGIN_NOW: return Notify::now;
    case PERSEUS_BEGIN_AT_WAIT: return Notify::never;
    default: throw Error(ErrorKind::invalid_argument, "no PerseusBegin has the number " + std::to_string(begin));
  }
}

}  // namespace

std::int32_t start(const PerseusRequest* request, const char* call, std::int32_t begin, void** handle, char* message,
                   std::size_t capacity) {
  try {
    const auto notify = notify_of(begin);
    const auto session = running_session();
    const auto ranks = request->splits == nullptr ? 0 : session->ranks_of(request->process_set).size();
    auto work = work_of(*request, static_cast<int>(ranks));
    if (call != nullptr) work->request.call = call;
    auto started = session->submit(request->process_set, std::move(work), request->reduce.average != 0, notify);
    *handle = new NativeHandle{std::move(started), notify != Notify::now};
    return PERSEUS_OK;
  } catch (const Error& error) {
    return report(error.kind(), error.what(), message, capacity);
  } catch (const std::exception& error) {
    return report(ErrorKind::unavailable, error.what(), message, capacity);
  }
}

std::int32_t wait(void* handle, std::int64_t limit_nanoseconds) {
  auto& pending = native(handle);
  auto& completion = *pending.handle.completion;
  if (!completion.done()) {
    const auto until = time_in(std::chrono::nanoseconds(limit_nanoseconds));
    pending.handle.wait(!pending.quiet.exchange(false), until);
  }
  if (!completion.done()) return PERSEUS_PENDING;
  return completion.status().ok() ? PERSEUS_OK : static_cast<std::int32_t>(completion.status().kind());
}

std::int32_t is_done(void* handle) {
  auto& pending = native(handle);
  pending.notify();
  return pending.handle.completion->done() ? 1 : 0;
}

void drop(void* handle, PerseusDone done, void* context) {
  const std::unique_ptr<NativeHandle> pending(static_cast<NativeHandle*>(handle));
  const auto& completion = pending->handle.completion;
  if (!completion->done()) pending->notify();
  if (done == nullptr) return;
  const Callback callback(done, context);
  if (completion->done()) return report_outcome(callback, completion);
  // The engine holds its lock when it calls this function. The completion keeps itself until it is done.
  completion->then(
      [callback, completion] { callbacks().post([callback, completion] { report_outcome(callback, completion); }); });
}

}  // namespace perseus
