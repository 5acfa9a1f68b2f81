#include "call.h"

#include <algorithm>
#include <array>
#include <ios>
#include <mutex>
#include <sstream>
#include <utility>

namespace perseus::tensorflow {

namespace {

// Returns a name of its own for each round of a loop. Rounds of a loop may be in progress at once, in another order on
// each rank, and so may rounds of an inner loop. TensorFlow's number of a loop depends on the loop's name and on the
// round of the outer loop.
std::string name_in_loop(const std::string& name, TF_OpKernelContext* context) {
  const auto loop = tf().TF_GetFrameId(context);
  const auto round = tf().TF_GetIterId(context);
  if (loop == 0) return name;
  std::ostringstream text;
  text << name << '@' << std::hex << loop << '.' << std::dec << round;
  return text.str();
}

constexpr std::size_t kMessageBytes = 4096;

// Follows "rank 0 calls" in the error text of all ranks.
constexpr auto* kCrossed =
    "it in two threads at the same time (make these calls in one thread, or give the collectives of each thread names "
    "of their own, in place of a tape: hvd.grouped_allreduce(gradients, name=…))";

}  // namespace

Call::Call(Kernel& kernel, TF_OpKernelContext* context, Kernel::Done done)
    : kernel_(kernel),
      context_(context),
      done_(std::move(done)),
      name_(name_in_loop(kernel.attributes().name, context)),
      step_(tf().TF_StepId == nullptr ? 0 : tf().TF_StepId(context)) {}

Call::~Call() {
  for (auto* tensor : tensors_held_) tf().TF_DeleteTensor(tensor);
}

void Call::submit(std::unique_ptr<Call> call, bool blocking) {
  const auto* api = core();
  if (api == nullptr) {
    call->fail(PERSEUS_ERROR_NOT_INITIALIZED, "perseus_like.tensorflow was not imported in this process");
    end(std::move(call));
    return;
  }
  call->contradicts_ = call->kernel_.was_crossed(*call);
  if (!call->contradicts_ && !call->prepare()) {
    end(std::move(call));
    return;
  }
  std::array<char, kMessageBytes> message{};
  auto* const raw = call.release();  // completed() owns it, unless the request is refused
  const auto refused = raw->contradicts_ ? raw->start_contradiction(message.data(), message.size())
                                         : raw->start(blocking, message.data(), message.size());
  if (refused == PERSEUS_OK) return;
  call.reset(raw);
  call->fail(refused, message.data());
  end(std::move(call));
}

std::int32_t Call::start(bool blocking, char* message, std::size_t capacity) {
  const auto asked = request();
  return (blocking ? core()->run : core()->submit)(&asked, message, capacity);
}

// A barrier needs no tensors. Ranks on which calls have crossed agree on it, and then each of them fails its call.
std::int32_t Call::start_contradiction(char* message, std::size_t capacity) {
  PerseusRequest asked{};
  asked.verb = PERSEUS_BARRIER;
  asked.process_set = kernel_.attributes().process_set;
  asked.name = name_.c_str();
  void* handle = nullptr;
  const auto refused = core()->start(&asked, kCrossed, PERSEUS_BEGIN_NOW, &handle, message, capacity);
  if (refused == PERSEUS_OK) core()->drop(handle, &Call::completed, this);
  return refused;
}

void Call::contradict_in_flight() const {
  if (core() != nullptr) core()->contradict(kernel_.attributes().process_set, name_.c_str(), kCrossed);
}

void Call::completed(void* raw, const PerseusOutcome* outcome) {
  std::unique_ptr<Call> call(static_cast<Call*>(raw));
  call->take(*outcome);
  end(std::move(call));
}

void Call::end(std::unique_ptr<Call> call) {
  if (!call->status_.ok()) tf().TF_OpKernelContext_Failure(call->context_, call->status_);
  auto next = call->kernel_.next(*call);
  const auto done = std::move(call->done_);
  call.reset();
  // The next execution keeps the kernel alive, because TensorFlow waits for it.
  done();
  if (next) submit(std::move(next), false);
}

bool Call::prepare() {
  const int count = tf().TF_NumInputs(context_);
  for (int i = 0; i < count && status_.ok(); ++i) {
    auto* input = get_input(i);
    if (!status_.ok()) break;
    if (kernel_.attributes().verb == PERSEUS_ALLTOALL && i == count - 1) {
      read_splits(input);
      tf().TF_DeleteTensor(input);
    } else if (keeps_shapes(kernel_.attributes().verb)) {
      reduce_into_output(i, input);
    } else {
      describe(input);
      tensors_held_.push_back(input);
    }
  }
  return status_.ok();
}

TF_Tensor* Call::get_input(int index) {
  TF_Tensor* tensor = nullptr;
  tf().TF_GetInput(context_, index, &tensor, status_);
  return tensor;
}

// Reuses the input as the output if nobody else uses it. TensorFlow counts the references to the input to know that.
void Call::reduce_into_output(int index, TF_Tensor* input) {
  describe(input);
  auto& shape = shapes_.back();
  tf().TF_DeleteTensor(input);
  int forwarded = -1;
  auto* const output = tf().TF_ForwardInputOrAllocateOutput(context_, &index, 1, index, shape.data(),
                                                            static_cast<int>(shape.size()), &forwarded, status_);
  if (!status_.ok()) return;
  tensors_held_.push_back(output);
  targets_.push_back(tf().TF_TensorData(output));
  if (forwarded >= 0) return;
  input = get_input(index);
  if (status_.ok()) tensors_held_.push_back(input);
}

// Reads the last input of an alltoall: the number of rows for each rank; empty: equally many for each.
void Call::read_splits(const TF_Tensor* tensor) {
  const auto* values = static_cast<const std::int32_t*>(tf().TF_TensorData(tensor));
  splits_.assign(values, values + tf().TF_TensorElementCount(tensor));
  const auto ranks = core()->size(kernel_.attributes().process_set);
  if (!splits_.empty() && ranks > 0 && splits_.size() != static_cast<std::size_t>(ranks))
    fail(PERSEUS_ERROR_INVALID_ARGUMENT,
         "'" + name_ + "': " + std::to_string(splits_.size()) + " splits for " + std::to_string(ranks) + " ranks");
}

void Call::describe(const TF_Tensor* tensor) {
  auto& shape = shapes_.emplace_back();
  for (int i = 0; i < tf().TF_NumDims(tensor); ++i) shape.push_back(tf().TF_Dim(tensor, i));
  tensors_.push_back({tf().TF_TensorData(tensor), core_dtype(tf().TF_TensorType(tensor)),
                      static_cast<std::int32_t>(shape.size()), nullptr});
}

PerseusRequest Call::request() {
  const auto& attributes = kernel_.attributes();
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].shape = shapes_[i].data();
  PerseusRequest request{};
  request.verb = attributes.verb;
  request.process_set = attributes.process_set;
  request.name = name_.c_str();
  request.tensor_count = static_cast<std::int32_t>(tensors_.size());
  request.inputs = tensors_.data();
  request.outputs = targets_.data();
  request.reduce = attributes.reduce;
  request.root = attributes.root;
  request.splits = splits_.empty() ? nullptr : splits_.data();
  request.tensor_names = attributes.member_names.c_str();
  request.done = &Call::completed;
  request.context = this;
  return request;
}

void Call::take(const PerseusOutcome& outcome) {
  if (outcome.error != PERSEUS_OK) {
    if (outcome.memory_is_lent != 0) keep_tensors();
    fail(outcome.error, outcome.message);
    return;
  }
  if (contradicts_ || kernel_.was_crossed(*this)) {
    fail_as_crossed();
    return;
  }
  const auto verb = kernel_.attributes().verb;
  if (verb == PERSEUS_JOIN) {
    set_int32(0, &outcome.number, 1, true);
    return;
  }
  for (int i = 0; i < outcome.result_count && status_.ok(); ++i) take_result(i, outcome.results[i], outcome.work);
  if (verb == PERSEUS_ALLTOALL && status_.ok()) set_int32(1, outcome.received_splits, outcome.split_count, false);
}

// Never releases this call's references to its tensors, because a peer may still use their memory.
void Call::keep_tensors() {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::vector<TF_Tensor*>>;
  const std::scoped_lock lock(mutex);
  kept->push_back(std::exchange(tensors_held_, {}));
}

// Makes a tensor of the memory that the core allocated for the result.
void Call::take_result(int index, const PerseusTensor& result, void* work) {
  void* const kept = core()->retain(work);
  if (kept == nullptr) {
    fail(PERSEUS_ERROR_UNAVAILABLE, "no memory for the result of '" + name_ + "'");
    return;
  }
  const auto dtype = tensorflow_dtype(result.dtype);
  std::size_t bytes = bytes_per_element(dtype);
  for (int i = 0; i < result.dimensions; ++i) bytes *= static_cast<std::size_t>(result.shape[i]);
  const auto release = [](void*, std::size_t, void* work_kept) { core()->release(work_kept); };
  auto* const tensor = tf().TF_NewTensor(dtype, result.shape, result.dimensions, result.data, bytes, release, kept);
  tf().TF_SetOutput(context_, index, tensor, status_);
  tf().TF_DeleteTensor(tensor);
}

void Call::set_int32(int index, const std::int64_t* values, int count, bool scalar) {
  const std::int64_t extent = count;
  auto* const tensor = tf().TF_AllocateOutput(context_, index, TF_INT32, &extent, scalar ? 0 : 1,
                                              static_cast<std::size_t>(count) * sizeof(std::int32_t), status_);
  if (!status_.ok()) return;
  auto* const target = static_cast<std::int32_t*>(tf().TF_TensorData(tensor));
  std::transform(values, values + count, target, [](std::int64_t value) { return static_cast<std::int32_t>(value); });
  tf().TF_DeleteTensor(tensor);
}

void Call::fail_as_crossed() {
  fail(PERSEUS_ERROR_INVALID_ARGUMENT,
       "'" + name_ +
           "': two threads of this rank called collectives of this name at the same time, so that the ranks may have "
           "combined tensors of different threads; make these calls in one thread, or give the collectives of each "
           "thread names of their own (in place of a tape: hvd.grouped_allreduce(gradients, name=…))");
}

void Call::fail(std::int32_t kind, const std::string& message) {
  status_.set(error_code(kind), error_text(kind, message));
}

}  // namespace perseus::tensorflow
