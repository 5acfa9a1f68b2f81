#include "transport/xccl/fabric.h"

#include <utility>

#include "base/error.h"
#include "transport/xccl/device.h"
#include "transport/xccl/libraries/library.h"
#include "transport/xccl/transport.h"

namespace perseus::xccl {
namespace {

class OneCclFabric final : public Fabric {
 public:
  OneCclFabric(std::unique_ptr<Fabric> below, int rank, Liveness& liveness, const Options& options,
               Participant participant)
      : below_(std::move(below)),
        rank_(rank),
        liveness_(liveness),
        options_(options),
        participant_(std::move(participant)) {}

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    auto link = below_->connect(members, exchange);
    if (members.size() == 1) return link;
    if (auto transport = xccl::connect(participant_, members, rank_, exchange, liveness_, options_)) {
      link.transport = std::move(transport);
    }
    return link;
  }

  void* allocate(std::size_t bytes) override { return below_->allocate(bytes); }
  void release(void* memory) override { below_->release(memory); }
  bool watches_host() const override { return below_->watches_host(); }
  void start_watch() override { below_->start_watch(); }
  Watch* local_watch() const override { return below_->local_watch(); }
  void announce_shutdown() override { below_->announce_shutdown(); }
  void end_watch() override { below_->end_watch(); }
  void close_after_fork() override { below_->close_after_fork(); }

  std::string description() const override {
    return (participant_.library ? participant_.library->title() : "oneCCL") + ", control messages by " +
           below_->description();
  }

 private:
  std::unique_ptr<Fabric> below_;
  int rank_;
  Liveness& liveness_;
  Options options_;
  Participant participant_;
};

}  // namespace

std::unique_ptr<Fabric> make_oneccl_fabric(std::unique_ptr<Fabric> below, const Topology& topology, Liveness& liveness,
                                           const FabricOptions& options, bool has_intel_mpi) {
  Participant participant{.library = nullptr, .why_not = "", .device = std::make_shared<HostDevice>()};
  try {
    participant.library = open_oneccl({options.oneccl_library, options.python_prefix}, topology, has_intel_mpi);
    if (Caller::any_abandoned()) {
      participant.library = nullptr;
      throw Error(ErrorKind::unavailable,
                  "oneCCL still waits in this process for a rank that was lost; start a new process");
    }
  } catch (const Error& error) {
    participant.why_not = error.what();
  }
  return std::make_unique<OneCclFabric>(std::move(below), topology.rank(), liveness,
                                        Options{.start_timeout = options.start_timeout, .queue_only = false},
                                        std::move(participant));
}

}  // namespace perseus::xccl
