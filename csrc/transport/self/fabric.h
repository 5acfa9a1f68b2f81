// The fabric of a job with one rank. Every group has one member, and shared memory is ordinary memory.
#pragma once

#include "transport/fabric.h"

namespace perseus::self {

class SelfFabric final : public Fabric {
 public:
  explicit SelfFabric(int rank = 0) : rank_(rank) {}

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override;
  void* allocate(std::size_t bytes) override;
  void release(void* memory) override;
  std::string description() const override { return "self"; }

 private:
  int rank_;  // world rank
};

}  // namespace perseus::self
