#include "kernel.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <string_view>

#include "../compat/done_callback.h"
#include "call.h"
#include "registrations.h"

namespace perseus::tensorflow {

namespace {

class Reader {
 public:
  explicit Reader(TF_OpKernelConstruction* construction) : construction_(construction) {}

  std::int32_t number(const char* attribute) {
    std::int32_t value = 0;
    if (status_.ok()) tf().TF_OpKernelConstruction_GetAttrInt32(construction_, attribute, &value, status_);
    return value;
  }
  bool flag(const char* attribute) {
    unsigned char value = 0;
    if (status_.ok()) tf().TF_OpKernelConstruction_GetAttrBool(construction_, attribute, &value, status_);
    return value != 0;
  }
  std::string text(const char* attribute) {
    std::int32_t list = 0, length = 0;
    if (status_.ok()) tf().TF_OpKernelConstruction_GetAttrSize(construction_, attribute, &list, &length, status_);
    std::string value(status_.ok() ? static_cast<std::size_t>(length) : 0, '\0');
    if (status_.ok() && length > 0)
      tf().TF_OpKernelConstruction_GetAttrString(construction_, attribute, value.data(), value.size(), status_);
    return value;
  }
  std::string node_name() const {
    const auto view = tf().TF_OpKernelConstruction_GetName(construction_);
    return {view.data, view.len};
  }
  bool ok() {
    if (!status_.ok()) tf().TF_OpKernelConstruction_Failure(construction_, status_);
    return status_.ok();
  }

 private:
  TF_OpKernelConstruction* construction_;
  Status status_;
};

// Factors are texts, because TensorFlow's float attributes have single precision.
double factor(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

// Returns the word that begins the names of requests.
std::string text_of(std::int32_t verb) {
#define PERSEUS_ROW(NAME, name, text, ...) text,
  constexpr auto kTexts = std::to_array<const char*>({PERSEUS_VERBS(PERSEUS_ROW)});
#undef PERSEUS_ROW
  return kTexts[static_cast<std::size_t>(verb)];
}

bool has_attribute(const Operation& operation, std::string_view name) {
  const auto& all = operation.attributes;
  return std::ranges::any_of(all, [&](std::string_view each) { return each.starts_with(std::string(name) + ":"); });
}

// Python calls the node of 'x' allreduce_x: "model/allreduce_x" becomes "model/x".
std::string plain_name(std::string node, const std::string& verb) {
  const auto slash = node.rfind('/');
  const auto start = slash == std::string::npos ? 0 : slash + 1;
  if (node.compare(start, verb.size() + 1, verb + "_") == 0) node.erase(start, verb.size() + 1);
  return node;
}

template <std::size_t index>
void* create(TF_OpKernelConstruction* construction) {
  const auto& operation = operations()[index];
  const auto verb = text_of(operation.verb);
  Reader reader(construction);
  Attributes attributes;
  attributes.verb = operation.verb;
  attributes.process_set = reader.number("process_set_id");
  attributes.wait = reader.flag("wait");
  auto name = reader.text("tensor_name");
  if (name.empty()) name = plain_name(reader.node_name(), verb);
  attributes.name = (reader.flag("grouped") ? "grouped_" : "") + verb + "." + name;
  if (has_attribute(operation, "reduce_op")) {
    attributes.reduce.op = reader.number("reduce_op");
    attributes.reduce.average = reader.flag("average") ? 1 : 0;
    attributes.reduce.prescale = factor(reader.text("prescale_factor"));
    attributes.reduce.postscale = factor(reader.text("postscale_factor"));
  }
  if (has_attribute(operation, "adasum")) {
    attributes.reduce.wire_dtype = reader.number("wire_dtype");
    attributes.member_names = reader.text("member_names");
    if (reader.flag("adasum")) attributes.verb = PERSEUS_ADASUM;
  }
  if (has_attribute(operation, "root")) attributes.root = reader.number("root");
  return reader.ok() ? new Kernel(std::move(attributes)) : nullptr;
}

void compute(void* kernel, TF_OpKernelContext* context) { static_cast<Kernel*>(kernel)->run_and_wait(context); }

void compute_async(void* raw, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto& kernel = *static_cast<Kernel*>(raw);
  if (!kernel.attributes().wait) {
    if (auto copy = copy_of(done)) {
      kernel.run(context, std::move(copy), false);
      return;
    }
  }
  kernel.run_and_wait(context);
  tf().TF_RunAsyncOpKernelDoneCallback(done);
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

bool has_asynchronous_kernels() {
  return tf().TF_NewAsyncKernelBuilder != nullptr && tf().TF_RunAsyncOpKernelDoneCallback != nullptr;
}

template <std::size_t index>
void register_kernel(std::string& problems) {
  const auto& operation = operations()[index];
  for (const auto* device : {"CPU", "GPU"}) {
    auto* const builder =
        has_asynchronous_kernels()
            ? tf().TF_NewAsyncKernelBuilder(operation.name, device, create<index>, compute_async, destroy)
            : tf().TF_NewKernelBuilder(operation.name, device, create<index>, compute, destroy);
    // A GPU kernel has its tensors in host memory. The CPU kernel does not declare that, because TensorFlow would never
    // reuse such an input as an output.
    for (const auto& arguments : {operation.inputs, operation.outputs}) {
      for (const std::string_view argument : arguments) {
        const std::string name(argument.substr(0, argument.find(':')));
        if (std::string_view(device) != "CPU") tf().TF_KernelBuilder_HostMemory(builder, name.c_str());
      }
    }
    const Status status;
    tf().TF_RegisterKernelBuilder(operation.name, builder, status);
    if (!status.ok()) problems += std::string(operation.name) + ": " + tf().TF_Message(status) + "; ";
  }
}

template <std::size_t... index>
std::string register_all(std::index_sequence<index...> /*operations*/) {
  std::string problems;
  (register_kernel<index>(problems), ...);
  return problems;
}

// Returns to Python whether kernels are asynchronous in this TensorFlow.
void tell_trust(TF_OpKernelContext* context, bool trusted) {
  const Status status;
  auto* const tensor = tf().TF_AllocateOutput(context, 0, TF_BOOL, nullptr, 0, sizeof trusted, status);
  if (!status.ok()) {
    tf().TF_OpKernelContext_Failure(context, status);
    return;
  }
  *static_cast<bool*>(tf().TF_TensorData(tensor)) = trusted;
  tf().TF_DeleteTensor(tensor);
}

void probe(void* /*kernel*/, TF_OpKernelContext* context) { tell_trust(context, false); }

void probe_async(void* /*kernel*/, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const auto copy = copy_of(done);
  tell_trust(context, static_cast<bool>(copy));
  if (copy) {
    copy();
  } else {
    tf().TF_RunAsyncOpKernelDoneCallback(done);
  }
}

// The calls of one name that have not ended: one is in flight, the others wait.
struct InFlight {
  const Kernel* owner = nullptr;
  std::int64_t step = 0;
  bool crossed = false;  // calls of several threads have overlapped
  std::deque<std::unique_ptr<Call>> waiting;
};

struct CallsInFlight {
  std::mutex mutex;  // guards by_name
  std::map<Call::Key, InFlight> by_name;
};

CallsInFlight& in_flight() {
  static auto* const the_one = new CallsInFlight;  // never freed: kernels may run when the process ends
  return *the_one;
}

std::string register_probe() {
  auto* const builder = has_asynchronous_kernels()
                            ? tf().TF_NewAsyncKernelBuilder("PerseusProbe", "CPU", nullptr, probe_async, nullptr)
                            : tf().TF_NewKernelBuilder("PerseusProbe", "CPU", nullptr, probe, nullptr);
  const Status status;
  tf().TF_RegisterKernelBuilder("PerseusProbe", builder, status);
  return status.ok() ? "" : std::string("PerseusProbe: ") + tf().TF_Message(status) + "; ";
}

}  // namespace

Kernel::Kernel(Attributes attributes) : attributes_(std::move(attributes)) {}
Kernel::~Kernel() = default;

void Kernel::run(TF_OpKernelContext* context, Done done, bool blocking) {
  auto call = std::make_unique<Call>(*this, context, std::move(done));
  switch (admit(call)) {
    case Admission::submit: Call::submit(std::move(call), blocking); return;
    case Admission::wait: return;
  }
}

void Kernel::run_and_wait(TF_OpKernelContext* context) {
  auto finished = std::make_shared<std::promise<void>>();
  auto result = finished->get_future();
  run(context, [finished] { finished->set_value(); }, true);
  // The core completes every request that it has accepted, also after a lost peer, a stall or the end of the session.
  result.wait();
}

Kernel::Admission Kernel::admit(std::unique_ptr<Call>& call) {
  auto& table = in_flight();
  const std::lock_guard lock(table.mutex);
  const auto [place, is_free] = table.by_name.try_emplace(call->key());
  auto& found = place->second;
  if (is_free) {
    found.owner = this;
    found.step = call->step();
    call->holds_name();
    return Admission::submit;
  }
  // An eager call waits for its end, so another one comes from another thread.
  if (found.crossed || attributes_.wait || found.step != call->step()) {
    found.crossed = true;
    call->contradict_in_flight();
  } else if (found.owner != this) {
    return Admission::submit;  // the core refuses two nodes with one name
  }
  call->holds_name();
  found.waiting.push_back(std::move(call));
  return Admission::wait;
}

bool Kernel::was_crossed(const Call& call) const {
  auto& table = in_flight();
  const std::lock_guard lock(table.mutex);
  const auto place = table.by_name.find(call.key());
  return call.is_holding_name() && place != table.by_name.end() && place->second.crossed;
}

std::unique_ptr<Call> Kernel::next(const Call& ended) {
  if (!ended.is_holding_name()) return nullptr;
  auto& table = in_flight();
  const std::lock_guard lock(table.mutex);
  const auto place = table.by_name.find(ended.key());
  if (place->second.waiting.empty()) {
    table.by_name.erase(place);
    return nullptr;
  }
  auto call = std::move(place->second.waiting.front());
  place->second.waiting.pop_front();
  return call;
}

std::string register_kernels() { return register_all(std::make_index_sequence<kCollectives>()) + register_probe(); }

}  // namespace perseus::tensorflow
