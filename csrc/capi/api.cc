#include "capi/api.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/callbacks.h"
#include "engine/runtime.h"

namespace perseus {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

template <typename Enum>
Enum checked(std::int32_t value, int count, const char* what) {
  if (value < 0 || value >= count) {
    refuse("invalid " + std::string(what) + " " + std::to_string(value) + "; pass a number from 0 to " +
           std::to_string(count - 1));
  }
  return static_cast<Enum>(value);
}

DType dtype_of(std::int32_t value) { return checked<DType>(value, kDTypeCount, "dtype"); }

bool writes_in_place(Verb verb) { return verb == Verb::allreduce || verb == Verb::adasum || verb == Verb::broadcast; }

std::shared_ptr<WorkItem> work_of(const PerseusRequest& asked, int ranks) {
  auto work = std::make_shared<WorkItem>();
  auto& request = work->request;
  request.verb = checked<Verb>(asked.verb, PERSEUS_BARRIER + 1, "verb");
  request.name = asked.name;
  request.op = checked<ReduceOp>(asked.reduce.op, PERSEUS_OP_COUNT, "reduce op");
  request.scale = {asked.reduce.prescale, asked.reduce.postscale, 1};
  request.root = asked.root;
  if (asked.tensor_names != nullptr) request.member_names = asked.tensor_names;
  if (asked.reduce.wire_dtype != PERSEUS_SAME_DTYPE) {
    request.wire_dtype = static_cast<std::int8_t>(dtype_of(asked.reduce.wire_dtype));
  }
  for (std::int32_t i = 0; i < asked.tensor_count; ++i) {
    const auto& tensor = asked.inputs[i];
    request.members.push_back({dtype_of(tensor.dtype), Shape(tensor.shape, tensor.shape + tensor.dimensions)});
    work->inputs.push_back(tensor.data);
  }
  if (request.verb != Verb::barrier && request.members.empty()) refuse(request.label() + ": a tensor is needed");
  if (asked.outputs == nullptr) {
    if (writes_in_place(request.verb)) work->outputs = work->inputs;
  } else {
    work->outputs.assign(asked.outputs, asked.outputs + asked.tensor_count);
  }
  if (asked.splits != nullptr) work->splits.assign(asked.splits, asked.splits + ranks);
  return work;
}

// The caller's callback and its argument.
struct Caller {
  PerseusDone done;
  void* context;

  explicit Caller(const PerseusRequest& asked) : done(asked.done), context(asked.context) {}
};

void tell(const Caller& caller, const std::shared_ptr<Completion>& completion) {
  std::vector<PerseusTensor> results;
  for (const auto& result : completion->results) {
    const auto& shape = result->shape();
    results.push_back({result->data(), static_cast<std::int32_t>(result->dtype()),
                       static_cast<std::int32_t>(shape.size()), shape.data()});
  }
  const auto& status = completion->status();
  auto kept = completion;
  const PerseusOutcome outcome{
      .error = status.ok() ? PERSEUS_OK : static_cast<std::int32_t>(status.kind()),
      .message = status.text().c_str(),
      .result_count = static_cast<std::int32_t>(results.size()),
      .results = results.data(),
      .received_splits = completion->received_splits.data(),
      .split_count = static_cast<std::int32_t>(completion->received_splits.size()),
      .number = completion->number,
      .work = &kept,
      .memory_is_lent = completion->memory_is_lent ? 1 : 0,
  };
  caller.done(caller.context, &outcome);
}

// Posts the callback to another thread, because `on_done` is called with the engine's lock held.
std::function<void(const Status&)> posting(const PerseusRequest& asked, std::shared_ptr<Completion> completion) {
  return [caller = Caller(asked), completion = std::move(completion)](const Status&) {
    callbacks().post([caller, completion] { tell(caller, completion); });
  };
}

void submit(const PerseusRequest& asked) {
  const auto session = running_session();
  if (asked.verb == PERSEUS_JOIN) {
    session->join(asked.process_set, [&asked](const std::shared_ptr<Completion>& completion) {
      completion->on_done = posting(asked, completion);
    });
    return;
  }
  auto work = work_of(asked, static_cast<int>(session->ranks_of(asked.process_set).size()));
  // The work item keeps a reference to itself until it is done.
  work->completion.on_done = posting(asked, completion_of(work));
  try {
    session->submit(asked.process_set, work, asked.reduce.average != 0);
  } catch (...) {
    work->completion.on_done = nullptr;
    throw;
  }
}

void run(const PerseusRequest& asked) {
  const auto session = running_session();
  if (asked.verb == PERSEUS_JOIN) {
    const auto handle = session->join(asked.process_set);
    handle.engine->wait(*handle.completion);
    return tell(Caller(asked), handle.completion);
  }
  auto work = work_of(asked, static_cast<int>(session->ranks_of(asked.process_set).size()));
  const auto handle = session->submit(asked.process_set, std::move(work), asked.reduce.average != 0, false);
  handle.engine->wait(*handle.completion, false);
  tell(Caller(asked), handle.completion);
}

std::int32_t report(ErrorKind kind, std::string_view text, char* message, std::size_t capacity) {
  if (capacity > 0) {
    const auto length = std::min(text.size(), capacity - 1);
    std::memcpy(message, text.data(), length);
    message[length] = '\0';
  }
  return static_cast<std::int32_t>(kind);
}

template <void (*action)(const PerseusRequest&)>
std::int32_t guarded(const PerseusRequest* asked, char* message, std::size_t capacity) {
  try {
    action(*asked);
    return PERSEUS_OK;
  } catch (const Error& error) {
    return report(error.kind(), error.what(), message, capacity);
  } catch (const std::exception& error) {
    return report(ErrorKind::unavailable, error.what(), message, capacity);
  }
}

// Returns −1 if there is no answer.
template <typename Question>
std::int32_t number(const Question& question) {
  try {
    return static_cast<std::int32_t>(question(*running_session(true)));
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

}  // namespace

const PerseusApi& c_api() {
  static const PerseusApi table{
      .version = PERSEUS_API_VERSION,
      .submit = &guarded<submit>,
      .run = &guarded<run>,
      .rank = &rank_in,
      .size = &size_of_set,
      .local_rank = &of_topology<&Topology::local_rank>,
      .local_size = &of_topology<&Topology::local_size>,
      .cross_rank = &of_topology<&Topology::cross_rank>,
      .cross_size = &of_topology<&Topology::cross_size>,
      .retain = &retain,
      .release = &release,
      .allocate = &allocate,
  };
  return table;
}

}  // namespace perseus
