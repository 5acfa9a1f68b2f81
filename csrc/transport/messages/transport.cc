#include "transport/messages/transport.h"

#include <new>

#include "transport/scattered.h"

namespace perseus::messages {
namespace {

// Staging memory is kept between calls up to this size.
constexpr std::size_t kKeptBytes = 256 << 20;

constexpr Reduction kBytes{.dtype = DType::uint8, .wire_dtype = DType::uint8, .op = ReduceOp::sum, .scale = {}};

// For the time of a collective, its thread makes progress, so that no other thread has to be woken for each message.
class ProgressScope {
 public:
  explicit ProgressScope(Network& network) : network_(network) { network_.begin_polling(); }
  ~ProgressScope() { network_.leave(); }
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

 private:
  Network& network_;
};

}  // namespace

template <class WorkItem>
Status MessageTransport::as_status(const WorkItem& work) {
  const ProgressScope progress_scope(communicator_.network());
  try {
    work();
    if (staging_.packed.size() > kKeptBytes) staging_.packed = {};
    return {};
  } catch (const Error& error) {
    communicator_.abort();
    return Status::from(error);
  } catch (const std::bad_alloc&) {
    communicator_.abort();
    return {ErrorKind::unavailable,
            "collective over " + std::string(communicator_.network().name()) +
                ": this rank has no memory left for staging; use smaller tensors or free memory"};
  }
}

Status MessageTransport::allreduce(const Reduction& reduction, Pieces in, Pieces out) {
  return as_status([&] { messages::allreduce(communicator_, staging_, reduction, in, out); });
}

Status MessageTransport::broadcast(Pieces buffers, int root) {
  return as_status([&] {
    const Scattered scattered(buffers, 1);
    const auto bytes = static_cast<std::size_t>(scattered.count());
    if (bytes == 0) return;
    if (auto* memory = scattered.contiguous()) {
      messages::broadcast(communicator_, memory, bytes, root);
      return;
    }
    if (staging_.packed.size() < bytes) staging_.packed.resize(bytes);
    if (rank() == root) scattered.pack(kBytes, 0, scattered.count(), staging_.packed.data());
    messages::broadcast(communicator_, staging_.packed.data(), bytes, root);
    if (rank() != root) scattered.unpack(kBytes, 0, scattered.count(), staging_.packed.data());
  });
}

Status MessageTransport::allgather(const void* in, void* out, Counts bytes) {
  return as_status([&] { messages::allgather(communicator_, in, out, bytes); });
}

Status MessageTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return as_status([&] { messages::alltoall(communicator_, in, send_bytes, out, recv_bytes); });
}

Status MessageTransport::reduce_scatter(const Reduction& reduction, const void* in, void* out, Counts counts) {
  return as_status([&] { messages::reduce_scatter(communicator_, staging_, reduction, in, out, counts); });
}

Status MessageTransport::barrier() {
  return as_status([&] { communicator_.barrier(); });
}

}  // namespace perseus::messages
