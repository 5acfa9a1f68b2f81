// Connects ranks of one host through shared memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/local/local_rendezvous.h"
#include "transport/fabric.h"
#include "transport/shm/group_view.h"
#include "transport/shm/host_plan.h"
#include "transport/shm/memory/arena.h"
#include "transport/shm/memory/external_segments.h"

namespace perseus::shm {

class ShmFabric final : public Fabric {
 public:
  // Makes the fabric of a host. Collective over the rendezvous, whose ranks are the local ranks. start_watch() turns
  // the rendezvous into a watch that reports ranks that have died. Throws Error.
  static std::unique_ptr<ShmFabric> create(std::shared_ptr<LocalRendezvous> rendezvous, const std::vector<int>& ranks,
                                           Liveness& liveness, const FabricOptions& options);

  // Makes a fabric for ranks that are threads of one process and share the segments.
  ShmFabric(Segments segments, Inboxes inboxes, HostPlan plan, Liveness& liveness);
  ~ShmFabric() override { ShmFabric::end_watch(); }

  // Connects members that are all on this host.
  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override;
  void* allocate(std::size_t bytes) override { return arena_->allocate(bytes); }
  void release(void* memory) override { arena_->release(memory); }
  std::shared_ptr<void> register_shared_memory(const void* data, std::size_t bytes) override {
    return external_->add(data, bytes);
  }
  bool watches_host() const override { return true; }
  void start_watch() override;
  Watch* local_watch() const override { return rendezvous_ ? rendezvous_->watch_connections() : nullptr; }
  void work_while_waiting(const std::function<void()>& work) override { work_while_waiting_ = work; }
  void announce_shutdown() override;
  void end_watch() override;
  void close_after_fork() override;
  std::string description() const override;

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<ExternalSegments> external_;
  std::shared_ptr<RetiredBlocks> retired_;
  HostPlan plan_;
  Liveness& liveness_;
  std::function<void()> work_while_waiting_;
  std::shared_ptr<LocalRendezvous> rendezvous_;
};

}  // namespace perseus::shm
