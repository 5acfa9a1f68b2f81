#include "transport/ucx/fabric.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory/lent_memory.h"
#include "transport/all_or_none.h"
#include "transport/messages/transport.h"
#include "transport/ucx/channel.h"
#include "transport/ucx/network.h"

namespace perseus::ucx {
namespace {

// The number of groups of which a rank can be the first member before numbers repeat.
constexpr std::uint64_t kGroupNumbers = std::uint64_t{1} << (kGroupBits - kRankBits);

class UcxFabric final : public Fabric {
 public:
  UcxFabric(std::shared_ptr<Connections> connections, int world_rank, const Liveness& liveness,
            std::chrono::microseconds spin)
      : connections_(std::move(connections)),
        world_rank_(world_rank),
        liveness_(liveness),
        options_{.liveness = &liveness, .spin = spin} {}

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    const Group group{.members = {members.begin(), members.end()}};
    return std::move(connect_groups({&group, 1}, exchange).front());
  }

  // The first member of a group numbers it.
  std::vector<Link> connect_groups(std::span<const Group> groups, const BootstrapAllgather& exchange) override {
    const auto number = connected_.fetch_add(groups.size());
    const auto notes = exchange(std::to_string(world_rank_) + " " + std::to_string(number));
    std::vector<Link> links;
    links.reserve(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& members = groups[i].members;
      const auto place = std::ranges::find(members, world_rank_);
      auto& link = links.emplace_back();
      if (place == members.end()) continue;
      const auto first = static_cast<std::uint64_t>(members.front());
      const auto group = first * kGroupNumbers + (number_of(members.front(), notes) + i) % kGroupNumbers;
      const int rank = static_cast<int>(place - members.begin());
      link.transport = std::make_unique<messages::MessageTransport>(
          std::make_unique<UcxNetwork>(connections_, members, rank, group), options_);
      if (!groups[i].has_control) continue;
      link.control = std::make_unique<UcxChannel>(connections_, members, rank, group, liveness_);
    }
    return links;
  }

  // The thread of the connections sends and receives beside the thread that reduces.
  bool works_beside() const override { return false; }

  // Memory from here is ordinary, because peers cannot reach it.
  void* allocate(std::size_t bytes) override { return allocate_lent(bytes, true); }
  void release(void* memory) override { free_lent(memory); }

  std::string description() const override {
    const int streams = connections_->streams();
    return "ucx (UCX " + connections_->library().version() +
           (streams == 1 ? ")" : ", " + std::to_string(streams) + " streams)");
  }

 private:
  static std::uint64_t number_of(int member, const std::vector<std::string>& notes) {
    const auto own = std::to_string(member) + " ";
    const auto note = std::ranges::find_if(notes, [&](const auto& text) { return text.starts_with(own); });
    if (note == notes.end()) throw Error(ErrorKind::transport, "process set: its first rank has not met the others");
    return std::stoull(note->substr(own.size()));
  }

  std::shared_ptr<Connections> connections_;
  int world_rank_;
  const Liveness& liveness_;
  messages::WaitOptions options_;
  std::atomic<std::uint64_t> connected_{0};
};

}  // namespace

std::vector<Offer> exchange_offers(Bootstrap& bootstrap, const LibraryPaths& paths) {
  std::string mine;
  try {
    const auto& library = open(paths);
    mine = "+" + std::to_string(library.major) + "." + std::to_string(library.minor);
  } catch (const Error& error) {
    mine = std::string("-") + error.what();
  }
  std::vector<Offer> offers;
  for (const auto& text : bootstrap.allgather(mine)) {
    auto& offer = offers.emplace_back();
    (text.starts_with('+') ? offer.version : offer.why_none) = text.substr(1);
  }
  return offers;
}

std::unique_ptr<Fabric> make_ucx_fabric(Bootstrap& bootstrap, Liveness& liveness, const UcxJob& job) {
  const auto exchange = [&](std::string_view mine) { return bootstrap.allgather(mine); };
  auto connections = all_or_none(bootstrap.rank(), exchange, [&] {
    if (!job.watched && bootstrap.rank() == 0) {
      throw Error(ErrorKind::unavailable,
                  "PERSEUS_HEARTBEAT_TIMEOUT is 0 on rank 0, and nothing else notices a lost host over UCX; give the "
                  "seconds after which a host is lost, up to 300000");
    }
    return std::make_shared<Connections>(open(job.library), job.connections);
  });
  connections->set_addresses(bootstrap.allgather(connections->addresses()));
  liveness.on_lost([connections] { connections->lose(); });
  return std::make_unique<UcxFabric>(std::move(connections), bootstrap.rank(), liveness, job.spin);
}

}  // namespace perseus::ucx
