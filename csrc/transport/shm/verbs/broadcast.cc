#include <algorithm>

#include "transport/shm/transport.h"

namespace perseus::shm {

Status ShmTransport::broadcast(Pieces buffers, int root) {
  return as_status([&] {
    const auto bytes = total_of(buffers);
    if (bytes == 0 || size() == 1) return;
    RunCursor walk(buffers, 1);
    const auto store = store_for(static_cast<std::uint64_t>(bytes));
    if (rank() == root) describe_pieces(buffers, buffers, 1);
    exchange_descriptors();
    if (descriptor_of(root).reachable != 0) {
      if (rank() != root) {
        std::int64_t done = 0;
        for (const auto& run : runs_of(root, 1, bytes)) {
          walk.each(done, run.count, [&](std::byte* data, std::int64_t first, std::int64_t count) {
            host::copy(data, run.in + first, static_cast<std::size_t>(count), store);
          });
          done += run.count;
        }
      }
      sync();
    } else {
      const auto chunk = stage(static_cast<std::uint64_t>(bytes));
      const auto move = [&](std::int64_t c, bool out) {
        walk.each(c * chunk, std::min(chunk, bytes - c * chunk),
                  [&](std::byte* data, std::int64_t first, std::int64_t count) {
                    auto* shown = slot(root, c) + first;
                    host::copy(out ? shown : data, out ? data : shown, static_cast<std::size_t>(count),
                               out ? host::Store::cached : store);
                  });
      };
      const bool is_root = rank() == root;
      pipeline((bytes + chunk - 1) / chunk,
               [&](std::int64_t c) {
                 if (is_root) move(c, true);
               },
               [&](std::int64_t c) {
                 if (!is_root) move(c, false);
               });
    }
    next_descriptor();
  });
}

}  // namespace perseus::shm
