#include <memory>

#include "core.h"
#include "registrations.h"

namespace perseus::tensorflow {

namespace {

struct Number {
  std::string what;
  std::int32_t process_set = 0;

  std::int32_t value() const {
    const auto& api = *core();
    if (what == "rank") return api.rank(process_set);
    if (what == "size") return api.size(process_set);
    if (what == "local_rank") return api.local_rank();
    if (what == "local_size") return api.local_size();
    return api.rank(process_set) < 0 ? 0 : 1;  // "included"
  }
};

void* create(TF_OpKernelConstruction* construction) {
  const Status status;
  auto number = std::make_unique<Number>();
  std::int32_t list = 0, length = 0;
  tf().TF_OpKernelConstruction_GetAttrSize(construction, "what", &list, &length, status);
  if (status.ok()) {
    number->what.resize(static_cast<std::size_t>(length));
    tf().TF_OpKernelConstruction_GetAttrString(construction, "what", number->what.data(), number->what.size(), status);
  }
  if (status.ok())
    tf().TF_OpKernelConstruction_GetAttrInt32(construction, "process_set_id", &number->process_set, status);
  if (status.ok()) return number.release();
  tf().TF_OpKernelConstruction_Failure(construction, status);
  return nullptr;
}

void compute(void* raw, TF_OpKernelContext* context) {
  const auto& number = *static_cast<const Number*>(raw);
  Status status;
  const auto value = core() == nullptr ? -1 : number.value();
  if (value < 0) {
    status.set(TF_UNKNOWN, error_text(PERSEUS_ERROR_NOT_INITIALIZED,
                                      "the " + number.what + " of process set " + std::to_string(number.process_set) +
                                          " is not known: call init(), and only in ranks of the set"));
  } else {
    auto* const tensor = tf().TF_AllocateOutput(context, 0, TF_INT32, nullptr, 0, sizeof value, status);
    if (status.ok()) {
      *static_cast<std::int32_t*>(tf().TF_TensorData(tensor)) = value;
      tf().TF_DeleteTensor(tensor);
      return;
    }
  }
  tf().TF_OpKernelContext_Failure(context, status);
}

void destroy(void* raw) { delete static_cast<Number*>(raw); }

}  // namespace

std::string register_number_kernels() {
  for (const auto* device : {"CPU", "GPU"}) {
    auto* const builder = tf().TF_NewKernelBuilder("PerseusNumber", device, create, compute, destroy);
    tf().TF_KernelBuilder_HostMemory(builder, "number");
    const Status status;
    tf().TF_RegisterKernelBuilder("PerseusNumber", builder, status);
    if (!status.ok()) return std::string("PerseusNumber: ") + tf().TF_Message(status) + "; ";
  }
  return "";
}

}  // namespace perseus::tensorflow
