#include "transport/xccl/transport.h"

namespace perseus::xccl {

void XcclTransport::abort(const Status& why) {
  if (failure_.ok()) failure_ = why;
  communicator_->abort(why.text());
}

bool XcclTransport::carries(const Reduction& reduction) const {
  // The library itself scales floating types if several ranks sum them.
  const bool scales = size() > 1 && reduction.op == ReduceOp::sum && is_floating(reduction.wire_dtype);
  const bool needs_kernels = reduction.wire_dtype != reduction.dtype || (!reduction.scale.is_identity() && !scales);
  return (communicator_->device().has_kernels() || !needs_kernels) && supports(reduction).ok();
}

Status XcclTransport::check() {
  const auto locked = communicator_->lock();
  if (!failure_.ok()) return failure_;
  try {
    communicator_->check();
  } catch (const Error& error) {
    failure_ = Status::from(error);
  }
  return failure_;
}

std::shared_ptr<void> XcclTransport::register_memory(void* memory, std::size_t bytes) {
  const auto& library = communicator_->library();
  const auto& call = library.call;
  if (library.traits.blocking || call.comm_register == nullptr || call.comm_deregister == nullptr) return nullptr;
  const auto locked = communicator_->lock();
  const auto current = communicator_->device().use();
  void* handle = nullptr;
  communicator_->run("CommRegister", [&](const Functions& functions, Comm comm) {
    return functions.comm_register(comm, memory, bytes, &handle);
  });
  return {handle, [communicator = communicator_](void* registered) { communicator->deregister(registered); }};
}

}  // namespace perseus::xccl
