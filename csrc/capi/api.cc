#include "capi/api.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/callbacks.h"
#include "capi/handles.h"
#include "capi/requests.h"
#include "engine/session/runtime.h"

namespace perseus {

namespace {

// Posts the callback to another thread, because `on_done` is called with the engine's lock held.
std::function<void(const Status&)> posting(const PerseusRequest& request, std::shared_ptr<Completion> completion) {
  return [callback = Callback(request), completion = std::move(completion)](const Status&) {
    callbacks().post([callback, completion] { report_outcome(callback, completion); });
  };
}

void submit(const PerseusRequest& request) {
  const auto session = running_session();
  if (request.verb == PERSEUS_JOIN) {
    session->join(request.process_set, [&request](const std::shared_ptr<Completion>& completion) {
      completion->on_done = posting(request, completion);
    });
    return;
  }
  auto work = work_of(request, static_cast<int>(session->ranks_of(request.process_set).size()));
  // The work item keeps a reference to itself until it is done.
  work->completion.on_done = posting(request, completion_of(work));
  try {
    session->submit(request.process_set, work, request.reduce.average != 0);
  } catch (...) {
    work->completion.on_done = nullptr;
    throw;
  }
}

void run(const PerseusRequest& request) {
  const auto session = running_session();
  if (request.verb == PERSEUS_JOIN) {
    const auto handle = session->join(request.process_set);
    handle.wait();
    return report_outcome(Callback(request), handle.completion);
  }
  auto work = work_of(request, static_cast<int>(session->ranks_of(request.process_set).size()));
  const auto handle = session->submit(request.process_set, std::move(work), request.reduce.average != 0, Notify::never);
  handle.wait(false);
  report_outcome(Callback(request), handle.completion);
}

template <void (*action)(const PerseusRequest&)>
std::int32_t to_c(const PerseusRequest* request, char* message, std::size_t capacity) {
  try {
    action(*request);
    return PERSEUS_OK;
  } catch (const Error& error) {
    return report(error.kind(), error.what(), message, capacity);
  } catch (const std::exception& error) {
    return report(ErrorKind::unavailable, error.what(), message, capacity);
  }
}

// Returns −1 if there is no answer.
template <typename Query>
std::int32_t number(const Query& query) {
  try {
    return static_cast<std::int32_t>(query(*running_session(true)));
  } catch (const std::exception&) {
    return -1;
  }
}

template <int (Topology::*getter)() const>
std::int32_t of_topology() {
  return number([](const Session& session) { return (session.topology().*getter)(); });
}

std::int32_t rank_in(std::int32_t process_set) {
  return number([process_set](const Session& session) {
    const auto ranks = session.ranks_of(process_set);
    const auto mine = std::find(ranks.begin(), ranks.end(), session.topology().rank());
    return mine == ranks.end() ? std::ptrdiff_t{-1} : mine - ranks.begin();
  });
}

std::int32_t size_of_set(std::int32_t process_set) {
  return number([process_set](const Session& session) { return session.ranks_of(process_set).size(); });
}

using Kept = std::shared_ptr<void>;

void* retain(void* work) { return new (std::nothrow) Kept(*static_cast<std::shared_ptr<Completion>*>(work)); }

void release(void* kept) { delete static_cast<Kept*>(kept); }

void* allocate(std::size_t bytes, void** data, char* message, std::size_t capacity) {
  try {
    auto memory = running_session()->allocate(bytes);
    *data = memory.get();
    return new Kept(std::move(memory));
  } catch (const std::exception& error) {
    report(ErrorKind::unavailable, error.what(), message, capacity);
    return nullptr;
  }
}

void contradict(std::int32_t process_set, const char* name, const char* call) {
  try {
    running_session()->contradict(process_set, name, call);
  } catch (const std::exception&) {
    return;  // the session has ended, and the request with it
  }
}

}  // namespace

const PerseusApi& c_api() {
  static const PerseusApi table{
      .version = PERSEUS_API_VERSION,
      .submit = &to_c<submit>,
      .run = &to_c<run>,
      .rank = &rank_in,
      .size = &size_of_set,
      .local_rank = &of_topology<&Topology::local_rank>,
      .local_size = &of_topology<&Topology::local_size>,
      .cross_rank = &of_topology<&Topology::cross_rank>,
      .cross_size = &of_topology<&Topology::cross_size>,
      .retain = &retain,
      .release = &release,
      .allocate = &allocate,
      .start = &start,
      .wait = &wait,
      .is_done = &is_done,
      .drop = &drop,
      .contradict = &contradict,
  };
  return table;
}

}  // namespace perseus
