#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "base/memory/lent_memory.h"
#include "transport/messages/transport.h"
#include "transport/scattered.h"

namespace perseus::messages {
namespace {

constexpr Reduction kBytes{.dtype = DType::uint8, .wire_dtype = DType::uint8, .op = ReduceOp::sum, .scale = {}};
constexpr std::size_t kTreeBytes = 64 << 10;
constexpr std::size_t kSegmentBytes = 256 << 10;
constexpr std::size_t kRoundBytes = 512 << 10;
constexpr int kLeastRounds = 4;         // up to this number of ranks, messages to all are as fast as rounds
constexpr std::size_t kLeastAhead = 4;  // least number of segments or rounds in flight

std::size_t ahead_on(const Communicator& communicator) {
  return std::max(kLeastAhead, 2 * static_cast<std::size_t>(communicator.streams()));
}

// Returns the index of the piece of that size that begins there.
std::int64_t turn_of(std::size_t at, std::size_t piece) { return static_cast<std::int64_t>(at / piece); }

// Broadcasts over a binomial tree. Places count ranks from the root, which has place 0.
void broadcast_tree(Communicator& communicator, void* data, std::size_t bytes, int root) {
  const int size = communicator.size();
  const int place = (communicator.rank() - root + size) % size;
  int reach = 1;  // places 0 … reach - 1 have the data
  for (; reach <= place; reach *= 2) {
    if (place >= 2 * reach) continue;
    Messages messages(communicator);
    messages.receive(data, bytes, (place - reach + root) % size, Tag::broadcast);
    messages.wait();
  }
  Messages messages(communicator);
  for (; place + reach < size; reach *= 2) messages.send(data, bytes, (place + reach + root) % size, Tag::broadcast);
  messages.wait();
}

// Broadcasts through a chain from the root on. A rank forwards segments while later ones arrive.
void broadcast_chain(Communicator& communicator, void* data, std::size_t bytes, int root) {
  const int size = communicator.size();
  const int place = (communicator.rank() - root + size) % size;
  const int before = (communicator.rank() - 1 + size) % size, after = (communicator.rank() + 1) % size;
  auto* base = static_cast<std::byte*>(data);
  const auto length = [&](std::size_t at) { return std::min(kSegmentBytes, bytes - at); };

  const auto ahead = ahead_on(communicator);
  std::deque<Messages> arriving, leaving;
  std::size_t asked = 0;
  for (std::size_t at = 0; at < bytes; at += kSegmentBytes) {
    if (place > 0) {
      for (; asked < bytes && arriving.size() < ahead; asked += kSegmentBytes) {
        auto& messages = arriving.emplace_back(communicator, turn_of(asked, kSegmentBytes));
        messages.receive(base + asked, length(asked), before, Tag::broadcast);
      }
      arriving.front().wait();
      arriving.pop_front();
    }
    if (place < size - 1) {
      auto& messages = leaving.emplace_back(communicator, turn_of(at, kSegmentBytes));
      messages.send(base + at, length(at), after, Tag::broadcast);
    }
    if (leaving.size() > ahead) {
      leaving.front().wait();
      leaving.pop_front();
    }
  }
  for (auto& messages : leaving) messages.wait();
}

void broadcast_bytes(Communicator& communicator, void* data, std::size_t bytes, int root) {
  if (communicator.size() == 1) return;
  if (bytes <= kTreeBytes) {
    broadcast_tree(communicator, data, bytes, root);
  } else {
    broadcast_chain(communicator, data, bytes, root);
  }
}

// Transfers long parts in rounds, several of them at once, because MPIs transfer one very long message slowly.
// `start` posts the messages for [at, at + kRoundBytes) of each part.
template <class Start>
void in_rounds(Communicator& communicator, std::size_t longest, const Start& start) {
  const auto ahead = ahead_on(communicator);
  std::deque<Messages> under_way;
  for (std::size_t at = 0; at < longest; at += kRoundBytes) {
    start(under_way.emplace_back(communicator, turn_of(at, kRoundBytes)), at);
    if (under_way.size() > ahead) {
      under_way.front().wait();
      under_way.pop_front();
    }
  }
  for (auto& messages : under_way) messages.wait();
}

// Returns the bytes of a part of `bytes` bytes in the round that begins at `at`.
std::size_t share(std::int64_t bytes, std::size_t at) {
  const auto whole = static_cast<std::size_t>(bytes);
  return at < whole ? std::min(kRoundBytes, whole - at) : 0;
}

// Gathers few bytes in log2(size) rounds.
void allgather_small(Communicator& communicator, const void* in, std::byte* out, Counts bytes,
                     const std::vector<std::size_t>& offsets) {
  const auto self = static_cast<std::size_t>(communicator.rank());
  LentVector<std::byte> blocks(offsets.back());
  if (bytes[self] > 0) std::memcpy(blocks.data(), in, static_cast<std::size_t>(bytes[self]));
  communicator.gather_small(blocks.data(), bytes);
  const auto* block = blocks.data();
  for (int i = 0; i < communicator.size(); ++i) {
    const auto rank = static_cast<std::size_t>(communicator.rank_ahead(i));
    std::copy_n(block, bytes[rank], out + offsets[rank]);
    block += bytes[rank];
  }
}

void copy_own(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

Status MessageTransport::broadcast(Pieces buffers, int root) {
  return as_status([&] {
    const Scattered scattered(buffers, 1);
    const auto bytes = static_cast<std::size_t>(scattered.count());
    if (bytes == 0) return;
    if (auto* memory = scattered.contiguous()) {
      broadcast_bytes(communicator_, memory, bytes, root);
      return;
    }
    if (staging_.packed.size() < bytes) staging_.packed.resize(bytes);
    if (rank() == root) scattered.pack(kBytes, 0, scattered.count(), staging_.packed.data());
    broadcast_bytes(communicator_, staging_.packed.data(), bytes, root);
    if (rank() != root) scattered.unpack(kBytes, 0, scattered.count(), staging_.packed.data());
  });
}

Status MessageTransport::allgather(const void* in, void* out, Counts bytes) {
  return as_status([&] {
    const int size = this->size(), rank = this->rank();
    const auto offsets = offsets_of<std::size_t>(bytes);
    auto* base = static_cast<std::byte*>(out);
    const auto mine = static_cast<std::size_t>(bytes[static_cast<std::size_t>(rank)]);
    if (size > kLeastRounds && offsets.back() > 0 && offsets.back() <= kTreeBytes) {
      allgather_small(communicator_, in, base, bytes, offsets);
      return;
    }
    // The rank's own block comes first, because `in` may be any part of `out`.
    auto* own = base + offsets[static_cast<std::size_t>(rank)];
    copy_own(own, in, mine);
    const auto longest = static_cast<std::size_t>(*std::max_element(bytes.begin(), bytes.end()));
    in_rounds(communicator_, longest, [&](Messages& messages, std::size_t at) {
      // Each rank begins with its neighbour, so that not all ranks send to the same rank at once.
      for (int step = 1; step < size; ++step) {
        const int peer = (rank - step + size) % size;
        const auto from = static_cast<std::size_t>(peer);
        messages.receive(base + offsets[from] + at, share(bytes[from], at), peer, Tag::allgather);
      }
      const auto count = share(static_cast<std::int64_t>(mine), at);
      for (int step = 1; step < size; ++step) messages.send(own + at, count, (rank + step) % size, Tag::allgather);
    });
  });
}

Status MessageTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return as_status([&] {
    const int size = this->size(), rank = this->rank();
    const auto send_at = offsets_of<std::size_t>(send_bytes), recv_at = offsets_of<std::size_t>(recv_bytes);
    const auto* from = static_cast<const std::byte*>(in);
    auto* to = static_cast<std::byte*>(out);
    // Received bytes may overwrite bytes that are still to be sent.
    LentVector<std::byte> copy;
    if (in == out && in != nullptr) {
      copy.assign(from, from + send_at.back());
      from = copy.data();
    }
    const auto self = static_cast<std::size_t>(rank);
    copy_own(to + recv_at[self], from + send_at[self], static_cast<std::size_t>(send_bytes[self]));
    const auto longest = static_cast<std::size_t>(std::max(*std::max_element(send_bytes.begin(), send_bytes.end()),
                                                           *std::max_element(recv_bytes.begin(), recv_bytes.end())));
    in_rounds(communicator_, longest, [&](Messages& messages, std::size_t at) {
      for (int step = 1; step < size; ++step) {
        const int peer = (rank - step + size) % size;
        const auto r = static_cast<std::size_t>(peer);
        messages.receive(to + recv_at[r] + at, share(recv_bytes[r], at), peer, Tag::alltoall);
      }
      for (int step = 1; step < size; ++step) {
        const int peer = (rank + step) % size;
        const auto r = static_cast<std::size_t>(peer);
        messages.send(from + send_at[r] + at, share(send_bytes[r], at), peer, Tag::alltoall);
      }
    });
  });
}

Status MessageTransport::barrier() {
  return as_status([&] { communicator_.barrier(); });
}

}  // namespace perseus::messages
