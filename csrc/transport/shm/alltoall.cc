#include <algorithm>
#include <numeric>
#include <string>

#include "transport/shm/group.h"
#include "transport/shm/overlap.h"

namespace perseus::shm {

namespace {

std::vector<std::int64_t> places(Counts bytes) {
  std::vector<std::int64_t> places(bytes.size());
  std::exclusive_scan(bytes.begin(), bytes.end(), places.begin(), std::int64_t{0});
  return places;
}

std::int64_t sum(Counts bytes) { return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}); }

}  // namespace

// One member's side of the exchange.
struct Group::Parcels {
  const std::byte* in = nullptr;
  Counts sent;
  std::vector<std::int64_t> sent_at;
  std::byte* out = nullptr;
  Counts received;
  std::vector<std::int64_t> received_at;
  host::Store store = host::Store::cached;
};

Status Group::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return guarded([&] {
    Parcels parcels{.in = static_cast<const std::byte*>(in),
                    .sent = send_bytes,
                    .sent_at = places(send_bytes),
                    .out = static_cast<std::byte*>(out),
                    .received = recv_bytes,
                    .received_at = places(recv_bytes),
                    .store = store_for(static_cast<std::uint64_t>(sum(recv_bytes)))};
    std::vector<std::byte> kept;  // others' parcels are about to overwrite what is still to be sent
    if (overlap(in, sum(send_bytes), out, sum(recv_bytes))) {
      kept.assign(parcels.in, parcels.in + sum(send_bytes));
      parcels.in = kept.data();
    }
    offer_parcels(parcels);
    sync();
    const auto me = static_cast<std::size_t>(rank());
    if (send_bytes[me] > 0) {
      host::copy(parcels.out + parcels.received_at[me], parcels.in + parcels.sent_at[me],
                 static_cast<std::size_t>(send_bytes[me]), parcels.store);
    }
    exchange_staged(parcels);
    if (fetch_reachable(parcels)) sync();
    next_offer();
  });
}

void Group::offer_parcels(const Parcels& parcels) {
  offer_range(parcels.in, static_cast<std::uint64_t>(sum(parcels.sent)));
  auto& offer = my_offer();
  if (parcels.sent.size() > Offer::kRuns) offer.reachable = 0;
  const auto start = offer.run[0].in;
  for (std::size_t m = 0; m < parcels.sent.size() && offer.reachable != 0; ++m) {
    offer.run[m] = {start + static_cast<std::uint64_t>(parcels.sent_at[m]), 0,
                    static_cast<std::uint64_t>(parcels.sent[m])};
  }
  offer.number = static_cast<std::uint64_t>(*std::max_element(parcels.sent.begin(), parcels.sent.end()));
}

// What lies out of reach goes through the slots, where each receiver has a part.
void Group::exchange_staged(const Parcels& parcels) {
  const auto me = rank();
  std::uint64_t longest = 0;
  for (int m = 0; m < size(); ++m) {
    if (const auto& offer = offer_of(m); offer.reachable == 0) longest = std::max(longest, offer.number);
  }
  const auto part = stage_parts(longest);
  const auto length = [&](Counts all, int m, std::int64_t c) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(all[static_cast<std::size_t>(m)] - c * part, 0, part));
  };
  const auto pack = [&](std::int64_t c) {
    for (int m = 0; my_offer().reachable == 0 && m < size(); ++m) {
      if (const auto n = m == me ? 0 : length(parcels.sent, m, c)) {
        host::copy(slot(me, c) + m * part, parcels.in + parcels.sent_at[static_cast<std::size_t>(m)] + c * part, n,
                   host::Store::cached);
      }
    }
  };
  const auto consume = [&](std::int64_t c) {
    for (int m = 0; m < size(); ++m) {
      if (m == me || offer_of(m).reachable != 0) continue;
      if (const auto n = length(parcels.received, m, c)) {
        host::copy(parcels.out + parcels.received_at[static_cast<std::size_t>(m)] + c * part, slot(m, c) + me * part, n,
                   parcels.store);
      }
    }
  };
  pipeline((static_cast<std::int64_t>(longest) + part - 1) / part, pack, consume);
}

// The rest comes straight from its owner's memory. True if there was such an owner.
bool Group::fetch_reachable(const Parcels& parcels) {
  bool any = false;
  for (int m = 0; m < size(); ++m) {
    const auto& offer = offer_of(m);
    if (offer.reachable == 0) continue;
    any = true;
    const auto n = static_cast<std::uint64_t>(parcels.received[static_cast<std::size_t>(m)]);
    if (m == rank() || n == 0) continue;
    const auto run = offer.run[rank()];
    if (run.bytes != n) {
      throw Error(ErrorKind::transport, "rank " + std::to_string(m) + " of the group sends " +
                                            std::to_string(run.bytes) + " bytes where " + std::to_string(n) +
                                            " were agreed on");
    }
    host::copy(parcels.out + parcels.received_at[static_cast<std::size_t>(m)], reach(m, run.in, n), n, parcels.store);
  }
  return any;
}

}  // namespace perseus::shm
