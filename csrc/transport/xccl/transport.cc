#include "transport/xccl/transport.h"

#include <new>

#include "base/error.h"
#include "base/memory/lent_memory.h"
#include "base/wait/blocking.h"

namespace perseus::xccl {

template <class WorkItem>
Status XcclTransport::as_status(const WorkItem& work) {
  if (!failure_.ok()) return failure_;
  before_blocking();  // within the library
  try {
    communicator_->check();
    work();
    communicator_->wait();
    staging_.trim();
    return {};
  } catch (const Error& error) {
    failure_ = Status::from(error);
  } catch (const std::bad_alloc&) {
    failure_ = {ErrorKind::unavailable,
                "not enough memory to stage a collective over " + communicator_->library().name};
  }
  communicator_->abort(failure_.text());
  if (communicator_->has_abandoned_call()) keep_lent_memory();
  return failure_;
}

Status XcclTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  return as_status([&] { xccl::allreduce(context(), reduction, in, out); });
}

Status XcclTransport::broadcast(Pieces buffers, int root) {
  return as_status([&] { xccl::broadcast(context(), buffers, root); });
}

Status XcclTransport::allgather(const void* in, void* out, Counts bytes) {
  return as_status([&] { xccl::allgather(context(), in, out, bytes); });
}

Status XcclTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return as_status([&] { xccl::alltoall(context(), in, send_bytes, out, recv_bytes); });
}

Status XcclTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  return as_status([&] { xccl::reduce_scatter(context(), reduction, in, out, counts); });
}

Status XcclTransport::barrier() {
  return as_status([&] { xccl::barrier(context()); });
}

void XcclTransport::abort(const Status& why) {
  if (failure_.ok()) failure_ = why;
  communicator_->abort(why.text());
}

Status XcclTransport::supports(const Reduction& reduction) const {
  return xccl::supports(communicator_->library(), communicator_->device(), reduction);
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
