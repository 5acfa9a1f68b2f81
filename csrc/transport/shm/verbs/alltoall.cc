#include <algorithm>
#include <numeric>
#include <string>

#include "transport/shm/transport.h"

namespace perseus::shm {

namespace {

std::vector<std::int64_t> places(Counts bytes) {
  std::vector<std::int64_t> places(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), places.begin(), std::int64_t{0});
  return places;
}

}  // namespace

// The sections that one member sends and receives.
struct ShmTransport::Sections {
  const std::byte* in = nullptr;
  Counts sent;
  std::vector<std::int64_t> sent_at;
  std::byte* out = nullptr;
  Counts received;
  std::vector<std::int64_t> received_at;
  host::Store store = host::Store::cached;
};

Status ShmTransport::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return as_status([&] {
    Sections sections{.in = static_cast<const std::byte*>(in),
                      .sent = send_bytes,
                      .sent_at = places(send_bytes),
                      .out = static_cast<std::byte*>(out),
                      .received = recv_bytes,
                      .received_at = places(recv_bytes),
                      .store = store_for(static_cast<std::uint64_t>(sum(recv_bytes)))};
    std::vector<std::byte> kept;  // a copy, if received sections would overwrite what is still to be sent
    if (overlap(in, sum(send_bytes), out, sum(recv_bytes))) {
      kept.assign(sections.in, sections.in + sum(send_bytes));
      sections.in = kept.data();
    }
    describe_sections(sections);
    exchange_descriptors();
    const auto me = static_cast<std::size_t>(rank());
    if (send_bytes[me] > 0) {
      host::copy(sections.out + sections.received_at[me], sections.in + sections.sent_at[me],
                 static_cast<std::size_t>(send_bytes[me]), sections.store);
    }
    exchange_staged(sections);
    if (fetch_reachable(sections)) sync();
    next_descriptor();
  });
}

void ShmTransport::describe_sections(const Sections& sections) {
  describe_range(sections.in, static_cast<std::uint64_t>(sum(sections.sent)));
  auto& descriptor = my_descriptor();
  if (sections.sent.size() > BufferDescriptor::kRuns) descriptor.reachable = 0;
  const auto start = descriptor.run[0].in;
  for (std::size_t m = 0; m < sections.sent.size() && descriptor.reachable != 0; ++m) {
    const auto offset = start.offset + static_cast<std::uint64_t>(sections.sent_at[m]);
    descriptor.run[m] = {{start.segment, offset}, {}, static_cast<std::uint64_t>(sections.sent[m])};
  }
  descriptor.number = static_cast<std::uint64_t>(*std::max_element(sections.sent.begin(), sections.sent.end()));
}

// Exchanges the sections that peers cannot reach through the slots, in which each receiver has a part.
void ShmTransport::exchange_staged(const Sections& sections) {
  const auto me = rank();
  std::uint64_t longest = 0;
  for (int m = 0; m < size(); ++m) {
    if (const auto& descriptor = descriptor_of(m); descriptor.reachable == 0)
      longest = std::max(longest, descriptor.number);
  }
  const auto part = stage_parts(longest);
  const auto length = [&](Counts all, int m, std::int64_t c) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(all[static_cast<std::size_t>(m)] - c * part, 0, part));
  };
  const auto pack = [&](std::int64_t c) {
    for (int m = 0; my_descriptor().reachable == 0 && m < size(); ++m) {
      if (const auto n = m == me ? 0 : length(sections.sent, m, c)) {
        host::copy(slot(me, c) + m * part, sections.in + sections.sent_at[static_cast<std::size_t>(m)] + c * part, n,
                   host::Store::cached);
      }
    }
  };
  const auto consume = [&](std::int64_t c) {
    for (int m = 0; m < size(); ++m) {
      if (m == me || descriptor_of(m).reachable != 0) continue;
      if (const auto n = length(sections.received, m, c)) {
        host::copy(sections.out + sections.received_at[static_cast<std::size_t>(m)] + c * part, slot(m, c) + me * part,
                   n, sections.store);
      }
    }
  };
  pipeline((static_cast<std::int64_t>(longest) + part - 1) / part, pack, consume);
}

// Copies the other sections directly from their owners' memory. Returns true if there was such an owner.
bool ShmTransport::fetch_reachable(const Sections& sections) {
  bool any = false;
  for (int m = 0; m < size(); ++m) {
    const auto& descriptor = descriptor_of(m);
    if (descriptor.reachable == 0) continue;
    any = true;
    const auto n = static_cast<std::uint64_t>(sections.received[static_cast<std::size_t>(m)]);
    if (m == rank() || n == 0) continue;
    const auto run = descriptor.run[rank()];
    if (run.bytes != n) {
      throw Error(ErrorKind::transport, "alltoall over shared memory: rank " + std::to_string(m) +
                                            " of the group sends " + std::to_string(run.bytes) + " bytes, but " +
                                            std::to_string(n) + " were agreed on; its process is corrupted");
    }
    host::copy(sections.out + sections.received_at[static_cast<std::size_t>(m)], reach(m, run.in, n), n,
               sections.store);
  }
  return any;
}

}  // namespace perseus::shm
