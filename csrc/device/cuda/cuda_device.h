// Implements Device for a CUDA device by the functions of the driver.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/cuda_driver.h"
#include "device/cuda/cuda_kernels.h"
#include "device/cuda/memory_pool.h"
#include "device/device.h"

namespace perseus::cuda {

class CudaDevice final : public Device, public std::enable_shared_from_this<CudaDevice> {
 public:
  // Opens a device in its primary context, which the framework uses too. `number` counts the devices that
  // CUDA_VISIBLE_DEVICES leaves. The driver must outlive the device. Throws Error.
  static std::shared_ptr<CudaDevice> open(const Driver& driver, int number);
  ~CudaDevice() override;

  int number() const override { return number_; }
  std::string description() const override { return name_; }

  std::shared_ptr<void> use() override { return std::make_shared<Current>(*this); }
  void activate() override { driver_.check("cuCtxSetCurrent", driver_.set_current(context_)); }

  std::shared_ptr<DeviceEvent> record(Stream stream) override;
  void wait(Stream stream, const DeviceEvent& event) override;
  bool is_done(const DeviceEvent& event) override;
  void synchronize(const DeviceEvent& event) override;
  void drain() override;
  bool is_capturing(Stream stream) override;
  std::shared_ptr<const Stream> make_stream() override;
  std::shared_ptr<void> allocate_pinned(std::size_t bytes) override;
  std::shared_ptr<DeviceMemory> allocate_on(const std::shared_ptr<const Stream>& stream, std::size_t bytes) override;
  void zero(Stream stream, void* memory, std::size_t bytes) override;
  void copy(Stream stream, void* to, const void* from, std::size_t bytes) override;
  bool has_multicast() const override { return has_multicast_; }
  bool has_kernels() const override { return kernels_ != nullptr; }
  void pack(Stream stream, const Reduction& reduction, std::span<const Piece> from, void* buffer) override;
  void unpack(Stream stream, const Reduction& reduction, const void* buffer, std::span<const Piece> to) override;

  // Makes the device current on this thread, and restores the previous device when it is destroyed. Meanwhile calls are
  // allowed that would end a graph capture of another thread, because they are not part of that graph.
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
    int capture_mode_;
  };

 private:
  class Event;
  class Memory;
  struct Private {};

 public:
  CudaDevice(Private, const Driver& driver, int number);

 private:
  void load_kernels();
  // Runs an action with the device current. Ignores failures, because the driver may be gone at the end of a process.
  template <typename Action>
  void quietly(const Action& action) const {
    ContextHandle ours = nullptr;
    if (driver_.push(context_) != kSuccess) return;
    action();
    driver_.pop(&ours);
  }
  void keep_pinned(void* memory, std::size_t bytes);
  void free_on(Stream stream, Pointer memory);
  bool launch(Stream stream, Direction direction, const Reduction& reduction, std::span<const Piece> pieces,
              void* buffer);

  const Driver& driver_;
  int number_;
  std::string name_;
  DeviceNumber device_ = 0;
  ContextHandle context_ = nullptr;
  bool has_multicast_ = false;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<MemoryPool> pool_;

  std::mutex mutex_;  // guards the rest
  std::vector<EventHandle> idle_events_;
  std::vector<std::pair<Stream, Pointer>> to_free_;  // memory to free after the stream's graph capture
  std::multimap<std::size_t, void*> idle_pinned_;    // freed pinned memory, by its bytes
};

}  // namespace perseus::cuda
