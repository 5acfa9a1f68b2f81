// The device for host memory, where the processor does all work without a stream.
#pragma once

#include "transport/xccl/device.h"

namespace perseus::xccl {

class HostDevice final : public Device {
 public:
  std::string name() const override { return "host memory"; }
  void* stream() const override { return nullptr; }
  void* allocate(std::size_t bytes) override;
  void release(void* memory) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void pack(const Reduction& reduction, Pieces from, void* to) override;
  void unpack(const Reduction& reduction, const void* from, Pieces to) override;
  bool reduces() const override { return true; }
  void reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) override;
  bool done() override { return true; }
};

}  // namespace perseus::xccl
