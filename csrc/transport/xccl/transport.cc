#include "transport/xccl/transport.h"

namespace perseus::xccl {

void XcclTransport::abort(const Status& why) {
  if (failure_.ok()) failure_ = why;
  communicator_->abort(why.text());
}

Status XcclTransport::check() {
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
  void* handle = nullptr;
  communicator_->run("CommRegister", [&](const Functions& functions, Comm comm) {
    return functions.comm_register(comm, memory, bytes, &handle);
  });
  return {handle, [communicator = communicator_](void* registered) { communicator->deregister(registered); }};
}

}  // namespace perseus::xccl
