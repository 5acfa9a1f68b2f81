#include "transport/shm/fabric.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transport/shm/channel.h"
#include "transport/shm/transport.h"

namespace perseus::shm {

namespace {

constexpr std::uint64_t kMagic = 0x7065727365757331;

// The place of a member's block, sent to the other members.
struct BlockDescriptor {
  std::uint64_t magic = kMagic;
  std::int64_t world_rank = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // 0: there was no memory for it
};

std::string to_bytes(const BlockDescriptor& note) {
  std::string bytes(sizeof note, '\0');
  std::memcpy(bytes.data(), &note, sizeof note);
  return bytes;
}

std::optional<BlockDescriptor> find_note(const std::vector<std::string>& all, int world_rank) {
  for (const auto& bytes : all) {
    BlockDescriptor note;
    if (bytes.size() != sizeof note) continue;
    std::memcpy(&note, bytes.data(), sizeof note);
    if (note.magic == kMagic && note.world_rank == world_rank) return note;
  }
  return std::nullopt;
}

std::byte* find_block(const Arena& arena, const std::vector<std::string>& all, int world_rank, int local_rank,
                      std::size_t bytes) {
  const auto note = find_note(all, world_rank);
  if (note && note->bytes == 0) {
    throw Error(
        ErrorKind::unavailable,
        "process set: rank " + std::to_string(world_rank) + " has no memory left for " + std::to_string(bytes >> 10) +
            " KiB of buffers shared with the ranks of its host; raise PERSEUS_ARENA_BYTES or use fewer process sets");
  }
  auto* block = note && note->bytes == bytes ? arena.at(local_rank, note->offset, bytes) : nullptr;
  if (block == nullptr) {
    throw Error(ErrorKind::transport,
                "process set: rank " + std::to_string(world_rank) +
                    " sent no place of its shared buffers; check that all ranks run the same version of perseus_like");
  }
  return block;
}

}  // namespace

std::unique_ptr<ShmFabric> ShmFabric::create(std::shared_ptr<LocalRendezvous> rendezvous, const std::vector<int>& ranks,
                                             Liveness& liveness, const FabricOptions& options) {
  std::string note;
  auto segments = share_segments(*rendezvous, options.arena_bytes, note);
  auto inboxes = share_inboxes(*rendezvous);
  auto plan = agree_on_plan(*rendezvous, ranks, options);
  auto fabric = std::make_unique<ShmFabric>(std::move(segments), std::move(inboxes), std::move(plan), liveness);
  if (!note.empty() && rendezvous->rank() == 0) log(LogLevel::warning, note);
  fabric->rendezvous_ = std::move(rendezvous);
  return fabric;
}

ShmFabric::ShmFabric(Segments segments, Inboxes inboxes, HostPlan plan, Liveness& liveness)
    : arena_(std::make_shared<Arena>(std::move(segments), plan.local_rank)),
      external_(std::make_shared<ExternalSegments>(std::move(inboxes), plan.local_rank)),
      retired_(std::make_shared<RetiredBlocks>()),
      plan_(std::move(plan)),
      liveness_(liveness) {}

Link ShmFabric::connect(std::span<const int> members, const BootstrapAllgather& exchange) {
  const int me = plan_.ranks[static_cast<std::size_t>(plan_.local_rank)];
  const auto mine = std::find(members.begin(), members.end(), me);
  if (mine == members.end()) {
    exchange("");
    return {};
  }
  const auto count = static_cast<int>(members.size());
  const auto staging = staging_for(plan_, count);
  const Mailbox mailbox{staging.total(), Mailbox::ring_bytes_for(count)};
  const auto bytes = mailbox.end(count);

  retired_->sweep(*arena_);
  void* block = arena_->allocate(bytes);
  BlockDescriptor note{.world_rank = me};
  if (block != nullptr) {
    // The memory may have been used before; all objects in it are all-zero initially.
    std::memset(block, 0, Staging::kHeader);
    std::memset(static_cast<std::byte*>(block) + mailbox.offset, 0, bytes - mailbox.offset);
    note.offset = arena_->offset_of(block, bytes).value();
    note.bytes = bytes;
  }
  const auto all = exchange(to_bytes(note));

  std::vector<int> local_ranks;
  std::vector<std::byte*> blocks;
  for (const int member : members) {
    const auto at = std::find(plan_.ranks.begin(), plan_.ranks.end(), member);
    local_ranks.push_back(static_cast<int>(at - plan_.ranks.begin()));
    blocks.push_back(find_block(*arena_, all, member, local_ranks.back(), bytes));
  }
  auto view = std::make_shared<GroupView>(arena_, external_, retired_, static_cast<int>(mine - members.begin()),
                                          std::move(local_ranks), std::move(blocks));
  Waiter waiter(plan_.spin, plan_.crowded, liveness_, work_while_waiting_);
  return {std::make_unique<ShmTransport>(view, staging, std::move(waiter), liveness_),
          std::make_unique<Channel>(view, mailbox, std::vector<int>(members.begin(), members.end()), liveness_)};
}

void ShmFabric::start_watch() {
  if (rendezvous_ && rendezvous_->watch_connections() == nullptr) rendezvous_->watch(liveness_, plan_.ranks);
}

void ShmFabric::end_watch() {
  if (rendezvous_) rendezvous_->end_watch();
  rendezvous_.reset();
}

void ShmFabric::announce_shutdown() {
  if (rendezvous_) rendezvous_->announce_shutdown();
}

void ShmFabric::close_after_fork() {
  arena_->make_private();
  if (rendezvous_) rendezvous_->close_after_fork();
}

std::string ShmFabric::description() const {
  return "shm, " + std::to_string(plan_.ranks.size()) + " ranks of one host";
}

}  // namespace perseus::shm
