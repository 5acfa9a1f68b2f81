// Connects ranks of one host through shared memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/local_star.h"
#include "transport/fabric.h"
#include "transport/shm/arena.h"
#include "transport/shm/host_plan.h"
#include "transport/shm/membership.h"

namespace perseus::shm {

class ShmFabric final : public Fabric {
 public:
  // Collective over the star, whose ranks are the local ranks; keeps it as the wire that tells who has died.
  // Throws Error.
  static std::unique_ptr<ShmFabric> create(std::unique_ptr<LocalStar> star, std::vector<int> ranks, Liveness& liveness,
                                           const FabricOptions& options);

  // For ranks that are threads of one process and share the segments.
  ShmFabric(Segments segments, HostPlan plan, Liveness& liveness);

  // `members` are all of this host.
  Link connect(std::span<const int> members, const Exchange& exchange) override;
  void* allocate(std::size_t bytes) override { return arena_->allocate(bytes); }
  void release(void* memory) override { arena_->release(memory); }
  bool watches_host() const override { return true; }
  Watch* local_watch() const override { return star_ ? star_->wires() : nullptr; }
  void say_goodbye() override;
  void close_after_fork() override;
  std::string description() const override;

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Retired> retired_;
  HostPlan plan_;
  Liveness& liveness_;
  std::unique_ptr<LocalStar> star_;
};

}  // namespace perseus::shm
