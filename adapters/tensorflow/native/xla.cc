#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <vector>

#include "../compat/custom_calls.h"
#include "core.h"
#include "registrations.h"

namespace perseus::tensorflow {

namespace {

// The request that adapters/tensorflow/requests/xla.py writes into the custom call: words between blanks. The name is
// the last word, and the names of the members follow it.
struct Description {
  PerseusRequest request{};
  std::int32_t rank = 0, size = 0;  // in the process set, when the function was traced
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::int32_t> dtypes;
  std::vector<std::size_t> result_bytes;
  std::string name;
  std::string member_names;
  std::string problem;  // why the text cannot be used; empty if it can

  // The text is part of a graph, which may come from a file, so it is checked before it is used.
  explicit Description(const std::string& text) {
    std::istringstream words(text);
    words >> request.verb >> request.process_set >> rank >> size >> request.reduce.op >> request.reduce.average >>
        request.reduce.prescale >> request.reduce.postscale >> request.reduce.wire_dtype >> request.root;
    request.tensor_count = static_cast<std::int32_t>(count(words, text.size(), "tensors"));
    for (int i = 0; i < request.tensor_count && problem.empty(); ++i) read_tensor(words, text.size());
    words >> name;
    if (problem.empty() && (words.fail() || name.empty())) problem = "it ends too early";
    const bool has_tensors = request.verb < PERSEUS_BARRIER;
    const bool is_verb = request.verb >= PERSEUS_ALLREDUCE && request.verb <= PERSEUS_JOIN;
    if (problem.empty() && (!is_verb || has_tensors != (request.tensor_count > 0))) {
      problem = "verb " + std::to_string(request.verb) + " with " + std::to_string(request.tensor_count) + " tensors";
    }
    if (!problem.empty()) {
      problem = error_text(PERSEUS_ERROR_INVALID_ARGUMENT,
                           "the text of a compiled collective makes no sense (" + problem +
                               "); trace the function again with this version of perseus_like");
      return;
    }
    words.ignore();
    member_names.assign(std::istreambuf_iterator<char>(words), {});
  }

  // Returns a count of items that follow. Each item takes at least two characters.
  std::size_t count(std::istringstream& words, std::size_t characters, const char* what) {
    std::int64_t value = -1;
    words >> value;
    if (!words.fail() && value >= 0 && static_cast<std::uint64_t>(value) <= characters / 2) {
      return static_cast<std::size_t>(value);
    }
    if (problem.empty()) problem = std::string("no number of ") + what;
    return 0;
  }

  void read_tensor(std::istringstream& words, std::size_t characters) {
    std::int64_t bytes = -1;
    words >> dtypes.emplace_back() >> bytes;
    auto& shape = shapes.emplace_back(count(words, characters, "dimensions"));
    for (auto& extent : shape) words >> extent;
    result_bytes.push_back(static_cast<std::size_t>(bytes));
    const bool negative = bytes < 0 || std::any_of(shape.begin(), shape.end(), [](auto extent) { return extent < 0; });
    if (problem.empty() && (words.fail() || negative || !is_core_dtype(dtypes.back()))) {
      problem = "tensor " + std::to_string(shapes.size() - 1);
    }
  }

  // Returns an error text if the ranks have changed since the function was compiled, otherwise "". Ranks are constants
  // in a compiled function, and its shapes depend on them.
  std::string outdated() const {
    const auto now = core()->rank(request.process_set), now_of = core()->size(request.process_set);
    if (now < 0 || (now == rank && now_of == size)) return "";  // the core reports that this rank is not in the set
    return error_text(PERSEUS_ERROR_INVALID_ARGUMENT,
                      "'" + name + "': this function was compiled for rank " + std::to_string(rank) + " of " +
                          std::to_string(size) + ", and this is rank " + std::to_string(now) + " of " +
                          std::to_string(now_of) + " by now; make a new tf.function after ranks have changed");
  }
};

struct Execution {
  std::vector<void*> targets;
  std::vector<std::size_t> bytes;
  bool has_tensors = true;  // if false, the only result is a number
  std::string failure;
};

void completed(void* raw, const PerseusOutcome* outcome) {
  auto& execution = *static_cast<Execution*>(raw);
  if (outcome->error != PERSEUS_OK) {
    execution.failure = error_text(outcome->error, outcome->message);
    return;
  }
  if (!execution.has_tensors)
    *static_cast<std::int32_t*>(execution.targets[0]) = static_cast<std::int32_t>(outcome->number);
  const auto count = static_cast<std::size_t>(outcome->result_count);
  if (count > execution.bytes.size()) {
    execution.failure = error_text(PERSEUS_ERROR_INVALID_ARGUMENT,
                                   "a compiled graph has room for " + std::to_string(execution.bytes.size()) +
                                       " results, and there are " + std::to_string(count));
    return;
  }
  for (int i = 0; i < outcome->result_count; ++i) {
    const auto& result = outcome->results[i];
    std::size_t bytes = bytes_per_element(tensorflow_dtype(result.dtype));
    for (int j = 0; j < result.dimensions; ++j) bytes *= static_cast<std::size_t>(result.shape[j]);
    const auto expected = execution.bytes[static_cast<std::size_t>(i)];
    if (bytes != expected) {
      execution.failure = error_text(PERSEUS_ERROR_INVALID_ARGUMENT,
                                     "a compiled graph has " + std::to_string(expected) + " bytes for a result of " +
                                         std::to_string(bytes) + "; ranks must give equally many rows");
      return;
    }
    if (bytes != 0) std::memcpy(execution.targets[static_cast<std::size_t>(i)], result.data, bytes);
  }
}

// Executes the custom call. The last operand, and the last element of the tuple of results, is the token that keeps
// custom calls in the order of the program.
void target(void* out, const void** in, const char* opaque, std::size_t length, CallStatus* status) {
  Description description(std::string(opaque, length));
  if (!description.problem.empty()) {
    status->set(description.problem);
    return;
  }
  auto& request = description.request;
  const auto count = static_cast<std::size_t>(request.tensor_count);
  const auto result_count = std::max<std::size_t>(count, 1);
  auto* const results = static_cast<void**>(out);
  Execution execution{std::vector<void*>(results, results + result_count), description.result_bytes, count != 0,
                      description.outdated()};
  std::memset(results[result_count], 0, sizeof(float));
  std::vector<PerseusTensor> inputs;
  inputs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& shape = description.shapes[i];
    inputs.push_back(
        {const_cast<void*>(in[i]), description.dtypes[i], static_cast<std::int32_t>(shape.size()), shape.data()});
  }
  request.name = description.name.c_str();
  request.tensor_names = description.member_names.c_str();
  request.inputs = inputs.data();
  request.outputs = keeps_shapes(request.verb) ? execution.targets.data() : nullptr;
  request.done = &completed;
  request.context = &execution;
  if (execution.failure.empty()) {
    std::array<char, 4096> message{};
    const auto refused = core()->run(&request, message.data(), message.size());
    if (refused != PERSEUS_OK) execution.failure = error_text(refused, message.data());
  }
  if (!execution.failure.empty()) status->set(execution.failure);
}

}  // namespace

std::string register_xla_target() { return register_custom_call("perseus_collective", &target); }

}  // namespace perseus::tensorflow
