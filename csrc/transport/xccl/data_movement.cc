#include <algorithm>
#include <vector>

#include "transport/scattered.h"
#include "transport/xccl/transport.h"

namespace perseus::xccl {
namespace {

constexpr Reduction kBytes{.dtype = DType::uint8, .wire_dtype = DType::uint8, .op = ReduceOp::sum, .scale = {}};
constexpr std::int64_t kStagedBytes = std::int64_t{64} << 20;  // most bytes of scattered memory staged at once
constexpr std::int64_t kChunkGrain = 64;                       // a chunk ends at a multiple of it within a piece
constexpr std::int64_t kPaddedBytes = std::int64_t{64} << 10;  // parts up to this size are padded and sent together
constexpr std::int64_t kRoundBytes = std::int64_t{1} << 20;    // bytes to each rank in a round of an uneven alltoall

std::int64_t longest(Counts bytes) { return *std::max_element(bytes.begin(), bytes.end()); }
bool all_equal(Counts bytes) {
  return std::adjacent_find(bytes.begin(), bytes.end(), std::not_equal_to<>()) == bytes.end();
}

void broadcast_bytes(Communicator& through, void* data, std::int64_t bytes, int root) {
  const auto most = through.library().traits.most_bytes;
  for (std::int64_t at = 0; at < bytes; at += most) {
    auto* from = static_cast<std::byte*>(data) + at;
    const auto count = size(std::min(most, bytes - at));
    through.run("Broadcast", [=, stream = through.device().stream()](const Functions& call, Comm comm) {
      return call.broadcast(from, from, count, DataType::uint8, root, comm, stream);
    });
  }
}

void gather_equal(Communicator& through, const void* in, void* out, std::int64_t bytes) {
  through.run("AllGather", [=, stream = through.device().stream()](const Functions& call, Comm comm) {
    return call.all_gather(in, out, size(bytes), DataType::uint8, comm, stream);
  });
}

// Consecutive memory with a part for each rank.
struct Parts {
  const std::byte* base;
  std::vector<std::int64_t> at, bytes;

  Parts(const void* memory, Counts counts)
      : base(static_cast<const std::byte*>(memory)), at(offsets_of(counts)), bytes(counts.begin(), counts.end()) {}
  // All parts have the same size.
  Parts(const void* memory, std::int64_t count, std::size_t ranks)
      : base(static_cast<const std::byte*>(memory)), at(ranks, 0), bytes(ranks, count) {}

  const std::byte* data(int rank) const { return base + at[static_cast<std::size_t>(rank)]; }
  std::size_t length(int rank) const { return size(bytes[static_cast<std::size_t>(rank)]); }
};

// Exchanges parts with every other rank in one group of calls. The rank's part for itself is not copied.
void exchange_in_group(Communicator& through, const Parts& leaving, const Parts& arriving) {
  auto* stream = through.device().stream();
  Communicator::Group group(through);
  // Each rank begins with its neighbour, so that not all ranks send to the same rank at once.
  for (int step = 1; step < through.size(); ++step) {
    const int to = (through.rank() + step) % through.size();
    const int from = (through.rank() - step + through.size()) % through.size();
    if (const auto bytes = leaving.length(to); bytes > 0) {
      through.run("Send", [=, data = leaving.data(to)](const Functions& call, Comm comm) {
        return call.send(data, bytes, DataType::uint8, to, comm, stream);
      });
    }
    if (const auto bytes = arriving.length(from); bytes > 0) {
      through.run("Recv", [=, data = const_cast<std::byte*>(arriving.data(from))](const Functions& call, Comm comm) {
        return call.recv(data, bytes, DataType::uint8, from, comm, stream);
      });
    }
  }
  group.end();
}

// The longest part that any rank sends to any other, and whether all parts are equally long.
struct Longest {
  std::int64_t bytes;
  bool everywhere;
};

Longest agree_on_longest(const Context& context, Counts send_bytes) {
  auto* both = reinterpret_cast<std::int64_t*>(context.staging.get(Staging::packed, 2 * sizeof(std::int64_t)));
  both[0] = longest(send_bytes);
  both[1] = -*std::min_element(send_bytes.begin(), send_bytes.end());
  context.through.run("AllReduce", [=, stream = context.device().stream()](const Functions& call, Comm comm) {
    return call.all_reduce(both, both, 2, DataType::int64, kMax, comm, stream);
  });
  return {both[0], both[0] == -both[1]};
}

// Exchanges parts in rounds of equal size, for a library on host memory that exchanges only equal parts.
void exchange_in_rounds(const Context& context, const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  const auto ranks = send_bytes.size();
  const auto most = agree_on_longest(context, send_bytes);
  const auto limit = context.through.library().traits.most_bytes / static_cast<std::int64_t>(ranks);
  if (most.everywhere && most.bytes <= limit) return exchange_equal(context, in, out, most.bytes);
  const auto send_at = offsets_of(send_bytes), recv_at = offsets_of(recv_bytes);
  const auto* from = static_cast<const std::byte*>(in);
  auto* to = static_cast<std::byte*>(out);
  const auto part = std::min(most.bytes, kRoundBytes);
  auto* leaving = context.staging.get(Staging::packed, size(part) * ranks);
  auto* arriving = context.staging.get(Staging::received, size(part) * ranks);
  const auto share = [part](std::int64_t bytes, std::int64_t at) {
    return size(std::clamp<std::int64_t>(bytes - at, 0, part));
  };
  for (std::int64_t at = 0; at < most.bytes; at += part) {
    for (std::size_t r = 0; r < ranks; ++r) {
      context.device().copy(leaving + r * size(part), from + send_at[r] + at, share(send_bytes[r], at));
    }
    exchange_equal(context, leaving, arriving, part);
    for (std::size_t r = 0; r < ranks; ++r) {
      context.device().copy(to + recv_at[r] + at, arriving + r * size(part), share(recv_bytes[r], at));
    }
  }
}

void exchange_apart(const Context& context, const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  const Parts leaving(in, send_bytes), arriving(out, recv_bytes);
  exchange_in_group(context.through, leaving, arriving);
  const int self = context.through.rank();
  context.device().copy(const_cast<std::byte*>(arriving.data(self)), leaving.data(self), leaving.length(self));
}

}  // namespace

void exchange_equal(const Context& context, const void* in, void* out, std::int64_t bytes) {
  if (bytes == 0) return;
  if (!context.through.library().traits.point_to_point) {
    context.through.run("AllToAll", [=, stream = context.device().stream()](const Functions& call, Comm comm) {
      return call.all_to_all(in, out, size(bytes), DataType::uint8, comm, stream);
    });
    return;
  }
  const std::vector<std::int64_t> each(size(context.through.size()), bytes);
  exchange_apart(context, in, each, out, each);
}

void gather(const Context& context, const void* in, void* out, Counts bytes) {
  const auto offsets = offsets_of(bytes);
  if (offsets.back() == 0) return;
  auto* base = static_cast<std::byte*>(out);
  const auto self = size(context.through.rank());
  // The rank's own part comes first, because `in` may be any part of `out`.
  context.device().copy(base + offsets[self], in, size(bytes[self]));
  const auto& traits = context.through.library().traits;
  if (all_equal(bytes) && offsets.back() <= traits.most_bytes) {
    return gather_equal(context.through, base + offsets[self], out, bytes[self]);
  }
  if (traits.point_to_point) {
    return exchange_in_group(context.through, {base + offsets[self], bytes[self], bytes.size()}, {out, bytes});
  }
  const auto part = longest(bytes);
  if (part > kPaddedBytes) {
    for (std::size_t r = 0; r < bytes.size(); ++r) {
      broadcast_bytes(context.through, base + offsets[r], bytes[r], static_cast<int>(r));
    }
    return;
  }
  auto* padded = context.staging.get(Staging::packed, size(part));
  auto* all = context.staging.get(Staging::received, size(part) * bytes.size());
  context.device().copy(padded, base + offsets[self], size(bytes[self]));
  gather_equal(context.through, padded, all, part);
  for (std::size_t r = 0; r < bytes.size(); ++r) {
    if (r != self) context.device().copy(base + offsets[r], all + r * size(part), size(bytes[r]));
  }
}

Status XcclTransport::broadcast(Pieces buffers, int root) {
  return as_status([&](const Context& context) {
    const Scattered scattered(buffers, 1);
    if (scattered.count() == 0) return;
    auto& [through, staging] = context;
    if (auto* memory = scattered.contiguous()) return broadcast_bytes(through, memory, scattered.count(), root);
    const auto grain = context.device().aligns_pieces() ? kChunkGrain : 1;
    for (std::int64_t begin = 0, end = 0; begin < scattered.count(); begin = end) {
      end = scattered.chunk_end(begin, kStagedBytes, grain);
      const auto pieces = scattered.cut(begin, end - begin);
      const auto packed = context.device().packed_count(kBytes, pieces);
      auto* staged = staging.get(Staging::packed, xccl::size(packed));
      if (rank() == root) context.device().pack(kBytes, pieces, staged);
      broadcast_bytes(through, staged, packed, root);
      if (rank() != root) context.device().unpack(kBytes, staged, pieces);
    }
  });
}

Status XcclTransport::allgather(const void* in, void* out, Counts bytes) {
  return as_status([&](const Context& context) { gather(context, in, out, bytes); });
}

Status XcclTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return as_status([&](const Context& context) {
    const auto* from = in;
    // Received bytes may overwrite bytes that are still to be sent.
    if (in == out) {
      const auto sent = xccl::size(sum(send_bytes));
      auto* copy = context.staging.get(Staging::result, sent);
      context.device().copy(copy, in, sent);
      from = copy;
    }
    if (context.through.library().traits.point_to_point) {
      exchange_apart(context, from, send_bytes, out, recv_bytes);
    } else {
      exchange_in_rounds(context, from, send_bytes, out, recv_bytes);
    }
  });
}

// Runs an allreduce whose result is not used.
Status XcclTransport::barrier() {
  return as_status([](const Context& context) {
    auto* token = context.staging.get(Staging::packed, sizeof(std::int32_t));
    context.through.run("AllReduce", [=, stream = context.device().stream()](const Functions& call, Comm comm) {
      return call.all_reduce(token, token, 1, DataType::int32, kMax, comm, stream);
    });
  });
}

}  // namespace perseus::xccl
