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

Status Group::alltoall(const void* in, Counts send_bytes, void* out, Counts recv_bytes) {
  return guarded([&] {
    const auto me = static_cast<std::size_t>(rank());
    const auto members = send_bytes.size();
    const auto sent_at = places(send_bytes), received_at = places(recv_bytes);
    const auto* mine = static_cast<const std::byte*>(in);
    auto* theirs = static_cast<std::byte*>(out);
    const auto store = store_for(static_cast<std::uint64_t>(sum(recv_bytes)));
    std::vector<std::byte> kept;
    if (overlap(mine, sum(send_bytes), theirs, sum(recv_bytes))) {
      kept.assign(mine, mine + sum(send_bytes));
      mine = kept.data();
    }

    offer_range(mine, static_cast<std::uint64_t>(sum(send_bytes)));
    auto& offer = my_offer();
    if (members > Offer::kRuns) offer.reachable = 0;
    const auto start = offer.run[0].in;
    for (std::size_t m = 0; m < members && offer.reachable != 0; ++m) {
      offer.run[m] = {start + static_cast<std::uint64_t>(sent_at[m]), 0, static_cast<std::uint64_t>(send_bytes[m])};
    }
    offer.number = static_cast<std::uint64_t>(*std::max_element(send_bytes.begin(), send_bytes.end()));
    sync();

    std::uint64_t longest = 0;
    bool any_reachable = false;
    for (std::size_t m = 0; m < members; ++m) {
      const auto& theirs_offer = offer_of(static_cast<int>(m));
      if (theirs_offer.reachable != 0)
        any_reachable = true;
      else
        longest = std::max(longest, theirs_offer.number);
    }
    // A slot has a place for each receiver.
    const auto part = stage_parts(longest);
    const auto length = [&](std::int64_t all, std::int64_t c) {
      return static_cast<std::size_t>(std::clamp<std::int64_t>(all - c * part, 0, part));
    };
    const bool staged = offer.reachable == 0;
    if (send_bytes[me] > 0) {
      host::copy(theirs + received_at[me], mine + sent_at[me], static_cast<std::size_t>(send_bytes[me]), store);
    }
    pipeline((static_cast<std::int64_t>(longest) + part - 1) / part,
             [&](std::int64_t c) {
               for (std::size_t m = 0; staged && m < members; ++m) {
                 const auto n = m == me ? 0 : length(send_bytes[m], c);
                 if (n > 0) {
                   host::copy(slot(rank(), c) + static_cast<std::int64_t>(m) * part, mine + sent_at[m] + c * part, n,
                              host::Store::cached);
                 }
               }
             },
             [&](std::int64_t c) {
               for (std::size_t m = 0; m < members; ++m) {
                 if (m == me || offer_of(static_cast<int>(m)).reachable != 0) continue;
                 if (const auto n = length(recv_bytes[m], c)) {
                   host::copy(theirs + received_at[m] + c * part,
                              slot(static_cast<int>(m), c) + static_cast<std::int64_t>(me) * part, n, store);
                 }
               }
             });
    if (any_reachable) {
      for (std::size_t m = 0; m < members; ++m) {
        const auto& theirs_offer = offer_of(static_cast<int>(m));
        const auto n = static_cast<std::uint64_t>(recv_bytes[m]);
        if (m == me || theirs_offer.reachable == 0 || n == 0) continue;
        if (theirs_offer.run[me].bytes != n) {
          throw Error(ErrorKind::transport, "rank " + std::to_string(m) + " of the group sends " +
                                                std::to_string(theirs_offer.run[me].bytes) + " bytes where " +
                                                std::to_string(n) + " were agreed on");
        }
        host::copy(theirs + received_at[m], reach(static_cast<int>(m), theirs_offer.run[me].in, n), n, store);
      }
      sync();
    }
    next_offer();
  });
}

}  // namespace perseus::shm
