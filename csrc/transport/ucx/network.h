// Point-to-point messages of one group over UCX.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "transport/messages/network.h"
#include "transport/ucx/connections.h"

namespace perseus::ucx {

class UcxNetwork final : public messages::Network {
 public:
  // `members` are world ranks, and `rank` this rank's place among them. `group` has the same value on all members.
  UcxNetwork(std::shared_ptr<Connections> connections, std::vector<int> members, int rank, std::uint64_t group)
      : connections_(std::move(connections)), members_(std::move(members)), rank_(rank), group_(group) {}

  std::string_view name() const override { return "UCX"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int streams() const override { return connections_->streams(); }

  Request send(int stream, const void* data, std::size_t bytes, int to, int tag) override {
    return connections_->send(stream, data, bytes, world_rank(to), {group_, rank_, tag}, doorbell_);
  }
  Request receive(int stream, void* data, std::size_t bytes, int from, int tag) override {
    return connections_->receive(stream, data, bytes, world_rank(from), {group_, from, tag}, doorbell_);
  }
  bool test(Request& request) override { return connections_->test(request); }
  bool abandon(Request& request, bool receiving) override { return connections_->abandon(request, receiving); }

  void progress() override { connections_->progress(); }
  Doorbell* doorbell() override { return &doorbell_; }
  void sleep(std::uint32_t seen, std::chrono::microseconds limit) override {
    connections_->sleep(doorbell_, seen, limit);
  }
  void begin_polling() override { connections_->begin_polling(); }
  void leave() override { connections_->leave(); }

  bool has_ended() override { return false; }
  void close() override {}  // groups share the connections

 private:
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }

  std::shared_ptr<Connections> connections_;
  std::vector<int> members_;
  int rank_;
  std::uint64_t group_;
  Doorbell doorbell_;
};

}  // namespace perseus::ucx
