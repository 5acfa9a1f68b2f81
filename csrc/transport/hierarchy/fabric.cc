#include "transport/hierarchy/fabric.h"

#include <algorithm>
#include <utility>

#include "transport/all_or_none.h"
#include "transport/hierarchy/channel.h"
#include "transport/hierarchy/layout.h"
#include "transport/hierarchy/pair.h"
#include "transport/hierarchy/transport.h"

namespace perseus::hierarchy {
namespace {

class ClusterFabric final : public Fabric {
 public:
  ClusterFabric(const Topology& topology, std::unique_ptr<Fabric> local, std::unique_ptr<Fabric> cross, bool flat)
      : topology_(topology), local_(std::move(local)), cross_(std::move(cross)), flat_(flat) {
    local_->work_while_waiting([cross = cross_.get()] { cross->make_progress(); });
  }

  // All ranks call both fabrics in the same order, whether they are members or not, because both exchange bytes.
  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    const Layout layout(topology_, members);
    const int own_host = layout.find_host(topology_.host_of(topology_.rank()));
    const auto neighbours = own_host < 0 ? std::vector<int>{} : layout.host_members(own_host);
    if (layout.host_count() == 1) return local_->connect(neighbours, exchange);
    if (static_cast<int>(members.size()) == layout.host_count()) return connect_alone(members, exchange);

    auto local = all_or_none(topology_.rank(), exchange, [&] { return local_->connect(neighbours, exchange); });
    std::vector<Group> groups{{.members = {members.begin(), members.end()}}};
    for (int rail = 0; rail < layout.rail_count(); ++rail) {
      groups.insert(groups.end(), cross_->works_beside() ? 2 : 1, {layout.rail_members(rail), false});
    }
    groups[1].has_control = true;  // the first rail is that of the leaders
    auto links = cross_->connect_groups(groups, exchange);
    auto all = std::move(links.front());
    Link leaders{nullptr, std::move(links[1].control)}, own_rail, second_rail;
    for (auto link = links.begin() + 1; link != links.end(); ++link) {
      if (link->transport) (own_rail.transport ? second_rail : own_rail).transport = std::move(link->transport);
    }
    const auto place = std::find(members.begin(), members.end(), topology_.rank());
    if (place == members.end()) return {};
    const int rank = static_cast<int>(place - members.begin());
    Transports transports{std::move(local.transport), std::move(own_rail.transport), std::move(all.transport),
                          std::move(second_rail.transport)};
    return {std::make_unique<HierarchicalTransport>(layout, rank, std::move(transports), flat_),
            std::make_unique<HierarchicalChannel>(layout, rank, std::move(local.control), std::move(leaders.control),
                                                  std::move(all.control))};
  }

  void* allocate(std::size_t bytes) override { return local_->allocate(bytes); }
  void release(void* memory) override { local_->release(memory); }
  std::shared_ptr<void> register_shared_memory(const void* data, std::size_t bytes) override {
    return local_->register_shared_memory(data, bytes);
  }

  void make_progress() override { cross_->make_progress(); }

  bool watches_host() const override { return true; }
  void start_watch() override { local_->start_watch(); }
  Watch* local_watch() const override { return local_->local_watch(); }
  void announce_shutdown() override {
    local_->announce_shutdown();
    cross_->announce_shutdown();
  }
  void end_watch() override {
    local_->end_watch();
    cross_->end_watch();
  }
  void close_after_fork() override {
    local_->close_after_fork();
    cross_->close_after_fork();
  }

  std::string description() const override {
    const auto between = cross_->description() + " between " + std::to_string(topology_.host_count()) + " hosts";
    return topology_.size() == topology_.host_count() ? between : between + ", " + local_->description() + " inside";
  }

 private:
  // Connects members that are all on different hosts.
  Link connect_alone(std::span<const int> members, const BootstrapAllgather& exchange) {
    std::vector<Group> groups(cross_->works_beside() ? 2 : 1, {{members.begin(), members.end()}, false});
    groups.front().has_control = true;
    auto links = cross_->connect_groups(groups, exchange);
    auto link = std::move(links.front());
    if (!link.transport || links.size() == 1) return link;
    link.transport = std::make_unique<PairTransport>(std::move(link.transport), std::move(links[1].transport));
    return link;
  }

  Topology topology_;
  std::unique_ptr<Fabric> local_, cross_;
  bool flat_;
};

}  // namespace

std::unique_ptr<Fabric> make_cluster_fabric(const Topology& topology, std::unique_ptr<Fabric> local,
                                            std::unique_ptr<Fabric> cross, bool flat_allreduce) {
  if (local == nullptr) return cross;
  return std::make_unique<ClusterFabric>(topology, std::move(local), std::move(cross), flat_allreduce);
}

}  // namespace perseus::hierarchy
