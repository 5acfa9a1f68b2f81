#include "capi/requests.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

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

}  // namespace

std::shared_ptr<WorkItem> work_of(const PerseusRequest& request, int ranks) {
  auto work = std::make_shared<WorkItem>();
  auto& engine_request = work->request;
  engine_request.verb = checked<Verb>(request.verb, PERSEUS_BARRIER + 1, "verb");
  engine_request.name = request.name;
  engine_request.op = checked<ReduceOp>(request.reduce.op, PERSEUS_OP_COUNT, "reduce op");
  engine_request.scale = {request.reduce.prescale, request.reduce.postscale, 1};
  engine_request.root = request.root;
  if (request.tensor_names != nullptr) engine_request.member_names = request.tensor_names;
  if (request.reduce.wire_dtype != PERSEUS_SAME_DTYPE) {
    engine_request.wire_dtype = static_cast<std::int8_t>(dtype_of(request.reduce.wire_dtype));
  }
  for (std::int32_t i = 0; i < request.tensor_count; ++i) {
    const auto& tensor = request.inputs[i];
    engine_request.members.push_back({dtype_of(tensor.dtype), Shape(tensor.shape, tensor.shape + tensor.dimensions)});
    work->inputs.push_back(tensor.data);
  }
  if (engine_request.verb != Verb::barrier && engine_request.members.empty())
    refuse(engine_request.label() + ": a tensor is needed");
  if (request.outputs == nullptr) {
    if (results_of(engine_request.verb) == Results::same_shapes) work->outputs = work->inputs;
  } else {
    work->outputs.assign(request.outputs, request.outputs + request.tensor_count);
  }
  if (request.splits != nullptr) work->splits.assign(request.splits, request.splits + ranks);
  return work;
}

void report_outcome(const Callback& callback, const std::shared_ptr<Completion>& completion) {
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
  callback.done(callback.context, &outcome);
}

std::int32_t report(ErrorKind kind, std::string_view text, char* message, std::size_t capacity) {
  if (capacity > 0) {
    const auto length = std::min(text.size(), capacity - 1);
    std::memcpy(message, text.data(), length);
    message[length] = '\0';
  }
  return static_cast<std::int32_t>(kind);
}

}  // namespace perseus
