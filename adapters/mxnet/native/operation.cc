#include "operation.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <unordered_set>
#include <utility>

namespace perseus::mxnet {

namespace {

void check(const MxnetApi& api, int code) {
  if (code != 0) throw std::runtime_error(api.last_error());
}

std::size_t bytes_of(const PerseusTensor& tensor, std::size_t element_bytes) {
  return std::accumulate(
      tensor.shape, tensor.shape + tensor.dimensions, element_bytes,
      [](std::size_t product, std::int64_t extent) { return product * static_cast<std::size_t>(extent); });
}

// Arrays of which no two are views of the same memory. The engine orders work by memory, not by array, and work that
// names the same memory twice would wait for itself.
class Distinct {
 public:
  void add(Array array) {
    if (memories_.insert(memory_of(array)).second) arrays_.push_back(array);
  }
  // Removes the first arrays, which are those of `others`.
  void drop(const Distinct& others) {
    arrays_.erase(arrays_.begin(), arrays_.begin() + static_cast<std::ptrdiff_t>(others.arrays_.size()));
  }
  bool has(Array array) const { return memories_.contains(memory_of(array)); }
  Array* data() { return arrays_.data(); }
  int size() const { return static_cast<int>(arrays_.size()); }

 private:
  std::vector<Array> arrays_;
  std::unordered_set<const void*> memories_;
};

// Indexed by DType.
constexpr std::array<std::size_t, 11> kElementBytes{1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 2};

}  // namespace

Arrays::~Arrays() {
  for (const auto array : arrays_) api_.free(array);
}

Array Arrays::add(Array array) {
  Array copy = nullptr;
  check(api_, api_.share(array, &copy));
  arrays_.push_back(copy);
  return copy;
}

void Arrays::keep_for_good() {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::vector<Array>>;
  const std::scoped_lock lock(mutex);
  kept->push_back(std::exchange(arrays_, {}));
}

Operation::Operation(const Libraries& libraries, const PerseusRequest& request, std::string name)
    : libraries_(libraries), request_(request), name_(std::move(name)), kept_(libraries.mxnet) {}

void Operation::push(Operation* operation, int priority) {
  std::unique_ptr<Operation> owned(operation);
  const auto& mxnet = owned->libraries_.mxnet;
  Distinct written;
  for (const auto array : owned->outputs) written.add(array);
  for (const auto array : owned->also_written) written.add(array);
  Distinct read = written;
  for (const auto& input : owned->inputs) {
    // Other operations may be reading an array that this one only reads, so the engine must order the change of layout.
    if (mxnet.row_layout.change != nullptr && !written.has(input.array)) mxnet.row_layout.change(input.array);
    read.add(input.array);
  }
  read.drop(written);
  owned->keep_arrays();
  const Context context;
  const int property = kAsynchronous;
  const std::string name = owned->name_;
  // From here on the engine owns the operation, even if it refuses it.
  check(mxnet, mxnet.push(&start, owned.release(), &release, &context, read.data(), read.size(), written.data(),
                          written.size(), &property, priority, name.c_str(), false));
}

void Operation::keep_arrays() {
  for (auto& input : inputs) input.array = kept_.add(input.array);
  for (auto& output : outputs) output = kept_.add(output);
  for (auto& array : also_written) array = kept_.add(array);
}

void Operation::start(void* /*run*/, void* on_complete, void* self) {
  static_cast<Operation*>(self)->begin(callback_at(on_complete));
}

void Operation::begin(const EngineCallback& on_complete) {
  on_complete_ = on_complete;
  if (!find_memory()) return complete(PERSEUS_ERROR_INVALID_ARGUMENT, libraries_.mxnet.last_error());
  request_.name = name_.c_str();
  request_.tensor_count = static_cast<std::int32_t>(views_.size());
  request_.inputs = views_.data();
  request_.outputs = targets_.data();
  request_.done = &done;
  request_.context = this;
  std::array<char, 2048> message{};
  const auto refused = libraries_.core->submit(&request_, message.data(), message.size());
  if (refused != PERSEUS_OK) complete(refused, message.data());
}

bool Operation::find_memory() {
  const auto& mxnet = libraries_.mxnet;
  for (const auto output : outputs) {
    if (mxnet.row_layout.change_now != nullptr) mxnet.row_layout.change_now(memory_of(output));
  }
  for (const auto& input : inputs) {
    void* data = nullptr;
    if (mxnet.data_of(input.array, &data) != 0) return false;
    views_.push_back({data, input.dtype, static_cast<std::int32_t>(input.shape.size()), input.shape.data()});
  }
  for (const auto output : outputs) {
    void* data = nullptr;
    if (mxnet.data_of(output, &data) != 0) return false;
    targets_.push_back(data);
  }
  return true;
}

void Operation::done(void* self, const PerseusOutcome* outcome) {
  auto& operation = *static_cast<Operation*>(self);
  if (outcome->memory_is_lent != 0) operation.kept_.keep_for_good();
  if (outcome->error == PERSEUS_OK) {
    for (std::int32_t i = 0; i < outcome->result_count; ++i) {
      const auto& result = outcome->results[i];
      std::memcpy(operation.targets_[static_cast<std::size_t>(i)], result.data,
                  bytes_of(result, kElementBytes[static_cast<std::size_t>(result.dtype)]));
    }
  }
  operation.complete(outcome->error, outcome->message);
}

// Completes the operation. The engine deletes it then, so nothing may use it afterwards.
void Operation::complete(int error, const char* message) const {
  const auto on_complete = on_complete_;
  if (error == PERSEUS_OK) return on_complete.call(on_complete.engine, on_complete.operation, nullptr);
  const auto& names = libraries_.error_names;
  const auto kind = static_cast<std::size_t>(error);
  // MXNet takes the class of the exception from the beginning of the text. It expects a dmlc::Error, which is a
  // std::runtime_error without further members, and copies it.
  const std::runtime_error reason((kind < names.size() ? names[kind] : "MXNetError") + ": " + message);
  on_complete.call(on_complete.engine, on_complete.operation, &reason);
}

void Operation::release(void* self) { delete static_cast<Operation*>(self); }

}  // namespace perseus::mxnet
