#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/error.h"
#include "base/log.h"

namespace perseus::cuda {

namespace {

constexpr unsigned kNonBlockingStream = 1;     // CU_STREAM_NON_BLOCKING
constexpr unsigned kBlockingSyncNoTiming = 3;  // CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING
constexpr int kRelaxedCapture = 2;             // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr Result kCaptureImplicit = 906;       // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: a stream that this one waits for
constexpr int kMulticastSupported = 132;       // CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
constexpr unsigned kPortable = 1;              // CU_MEMHOSTALLOC_PORTABLE

StreamHandle handle_of(Stream stream) { return reinterpret_cast<StreamHandle>(stream); }
Pointer pointer(const void* memory) { return reinterpret_cast<Pointer>(memory); }

}  // namespace

class CudaDevice::Event final : public DeviceEvent {
 public:
  Event(std::shared_ptr<CudaDevice> device, EventHandle handle) : device_(std::move(device)), handle_(handle) {}
  ~Event() override {
    const std::scoped_lock lock(device_->mutex_);
    device_->idle_events_.push_back(handle_);
  }
  EventHandle handle() const { return handle_; }
  static EventHandle of(const DeviceEvent& event) { return static_cast<const Event&>(event).handle(); }

 private:
  std::shared_ptr<CudaDevice> device_;
  EventHandle handle_;
};

class CudaDevice::Memory final : public DeviceMemory {
 public:
  Memory(std::shared_ptr<CudaDevice> device, std::shared_ptr<const Stream> made_on, Pointer memory)
      : device_(std::move(device)), made_on_(std::move(made_on)), memory_(memory), last_(*made_on_) {}
  ~Memory() override { device_->free_on(last_, memory_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const override { return reinterpret_cast<void*>(memory_); }
  void pass_to(Stream stream) override { last_ = stream; }

 private:
  std::shared_ptr<CudaDevice> device_;
  std::shared_ptr<const Stream> made_on_;
  Pointer memory_;
  Stream last_;
};

CudaDevice::Current::Current(const CudaDevice& device) : driver_(device.driver_), capture_mode_(kRelaxedCapture) {
  driver_.check("cuCtxPushCurrent", driver_.push(device.context_));
  driver_.exchange_capture_mode(&capture_mode_);
}

CudaDevice::Current::~Current() {
  driver_.exchange_capture_mode(&capture_mode_);
  ContextHandle ours = nullptr;
  driver_.pop(&ours);
}

std::shared_ptr<CudaDevice> CudaDevice::open(const Driver& driver, int number) {
  return std::make_shared<CudaDevice>(Private{}, driver, number);
}

CudaDevice::CudaDevice(Private, const Driver& driver, int number) : driver_(driver), number_(number) {
  int devices = 0;
  driver_.check("cuDeviceGetCount", driver_.device_count(&devices));
  if (number < 0 || number >= devices) {
    throw Error(ErrorKind::invalid_argument,
                "there is no CUDA device " + std::to_string(number) + ": this process sees " + std::to_string(devices) +
                    "; check CUDA_VISIBLE_DEVICES and the device that the program selects");
  }
  driver_.check("cuDeviceGet", driver_.device(&device_, number));
  std::array<char, 256> name{};
  driver_.check("cuDeviceGetName", driver_.device_name(name.data(), static_cast<int>(name.size()) - 1, device_));
  name_ = "CUDA device " + std::to_string(number) + " (" + name.data() + ")";
  int multicast = 0;  // a driver that does not know the attribute reports a failure
  has_multicast_ = driver_.device_attribute(&multicast, kMulticastSupported, device_) == kSuccess && multicast != 0;
  driver_.check("cuDevicePrimaryCtxRetain", driver_.retain(&context_, device_));
  try {
    load_kernels();
    const Current current(*this);
    pool_ = std::make_unique<MemoryPool>(driver_, device_);
  } catch (...) {
    driver_.release(device_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  quietly([this] {
    kernels_.reset();
    for (auto* event : idle_events_) driver_.event_destroy(event);
    for (const auto& [stream, memory] : to_free_) pool_->free_at_end(memory);
    for (const auto& [bytes, memory] : idle_pinned_) driver_.free_host(memory);
    pool_.reset();
  });
  driver_.release(device_);
}

void CudaDevice::load_kernels() {
  const Current current(*this);
  try {
    kernels_ = std::make_unique<Kernels>(driver_, kPackPtx);
  } catch (const Error& error) {
    log(LogLevel::warning, name_ + ": the kernels cannot be used (" + error.what() +
                               "), they need a driver of CUDA 11 and a device of compute capability 7.0; gradients are "
                               "packed by copies, and are neither scaled nor compressed on the device");
  }
}

std::shared_ptr<DeviceEvent> CudaDevice::record(Stream stream) {
  const Current current(*this);
  EventHandle handle = nullptr;
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_events_.empty()) {
      handle = idle_events_.back();
      idle_events_.pop_back();
    }
  }
  if (handle == nullptr) driver_.check("cuEventCreate", driver_.event_create(&handle, kBlockingSyncNoTiming));
  auto event = std::make_shared<Event>(shared_from_this(), handle);
  driver_.check("cuEventRecord", driver_.event_record(handle, handle_of(stream)));
  return event;
}

void CudaDevice::wait(Stream stream, const DeviceEvent& event) {
  const Current current(*this);
  driver_.check("cuStreamWaitEvent", driver_.stream_wait(handle_of(stream), Event::of(event), 0));
}

bool CudaDevice::is_done(const DeviceEvent& event) {
  const Current current(*this);
  const auto result = driver_.event_query(Event::of(event));
  if (result == kNotReady) return false;
  driver_.check("cuEventQuery", result);
  return true;
}

void CudaDevice::synchronize(const DeviceEvent& event) {
  const Current current(*this);
  driver_.check("cuEventSynchronize", driver_.event_synchronize(Event::of(event)));
}

void CudaDevice::drain() {
  const Current current(*this);
  driver_.check("cuCtxSynchronize", driver_.context_synchronize());
}

bool CudaDevice::is_capturing(Stream stream) {
  const Current current(*this);
  int status = 0;
  const auto result = driver_.stream_is_capturing(handle_of(stream), &status);
  if (result == kCaptureImplicit) return true;
  driver_.check("cuStreamIsCapturing", result);
  return status != 0;
}

std::shared_ptr<const Stream> CudaDevice::make_stream() {
  const Current current(*this);
  StreamHandle made = nullptr;
  driver_.check("cuStreamCreateWithPriority", driver_.stream_create(&made, kNonBlockingStream, 0));
  return {new Stream(reinterpret_cast<Stream>(made)), [device = shared_from_this()](const Stream* stream) {
            device->quietly([&] { device->driver_.stream_destroy(handle_of(*stream)); });
            delete stream;
          }};
}

// Pinned memory is used again, because the driver may wait for the whole device when it is freed.
std::shared_ptr<void> CudaDevice::allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  auto size = std::max<std::size_t>(bytes, 1);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = idle_pinned_.lower_bound(size); found != idle_pinned_.end()) {
      std::tie(size, memory) = *found;
      idle_pinned_.erase(found);
    }
  }
  if (memory == nullptr) {
    const Current current(*this);
    driver_.check("cuMemHostAlloc", driver_.allocate_host(&memory, size, kPortable));
  }
  return {memory, [device = shared_from_this(), size](void* given) { device->keep_pinned(given, size); }};
}

void CudaDevice::keep_pinned(void* memory, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  idle_pinned_.emplace(bytes, memory);
}

std::shared_ptr<DeviceMemory> CudaDevice::allocate_on(const std::shared_ptr<const Stream>& stream, std::size_t bytes) {
  std::vector<std::pair<Stream, Pointer>> left;
  {
    const std::scoped_lock lock(mutex_);
    left.swap(to_free_);
  }
  for (const auto& [last, memory] : left) free_on(last, memory);
  const Current current(*this);
  return std::make_shared<Memory>(shared_from_this(), stream, pool_->allocate(bytes, handle_of(*stream)));
}

// Delays freeing on a stream that is being captured, because it would become part of the graph.
void CudaDevice::free_on(Stream stream, Pointer memory) {
  quietly([&] {
    int status = 0;
    const bool asked = driver_.stream_is_capturing(handle_of(stream), &status) == kSuccess;
    if (asked && status == 0 && pool_->free(memory, handle_of(stream))) return;
    const std::scoped_lock lock(mutex_);
    to_free_.emplace_back(stream, memory);
  });
}

// Uses the call with a stream. The call without one uses the default stream, for which this library's streams do not
// wait.
void CudaDevice::zero(Stream stream, void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(*this);
  driver_.check("cuMemsetD8Async", driver_.set_bytes(pointer(memory), 0, bytes, handle_of(stream)));
}

void CudaDevice::copy(Stream stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  const Current current(*this);
  driver_.check("cuMemcpyAsync", driver_.copy(pointer(to), pointer(from), bytes, handle_of(stream)));
}

void CudaDevice::pack(Stream stream, const Reduction& reduction, std::span<const Piece> from, void* buffer) {
  if (launch(stream, Direction::pack, reduction, from, buffer)) return;
  auto* to = static_cast<std::byte*>(buffer);
  const auto width = size_of(reduction.dtype);
  for (const auto& piece : from) {
    copy(stream, to, piece.data, static_cast<std::size_t>(piece.count) * width);
    to += static_cast<std::size_t>(aligned_count(piece.count, width)) * width;
  }
}

void CudaDevice::unpack(Stream stream, const Reduction& reduction, const void* buffer, std::span<const Piece> to) {
  if (launch(stream, Direction::unpack, reduction, to, const_cast<void*>(buffer))) return;
  const auto* from = static_cast<const std::byte*>(buffer);
  const auto width = size_of(reduction.dtype);
  for (const auto& piece : to) {
    if (piece.data != from) copy(stream, piece.data, from, static_cast<std::size_t>(piece.count) * width);
    from += static_cast<std::size_t>(aligned_count(piece.count, width)) * width;
  }
}

// Returns false if plain copies suffice.
bool CudaDevice::launch(Stream stream, Direction direction, const Reduction& reduction, std::span<const Piece> pieces,
                        void* buffer) {
  const auto plan = plan_launch(direction, reduction);
  const bool one = pieces.size() == 1 && plan.copies;
  if (one) return false;
  if (kernels_ == nullptr) {
    if (plan.copies) return false;
    throw Error(ErrorKind::unavailable,
                name_ +
                    " cannot use the kernels, which scaling and compression need; the warning at "
                    "the start has the cause: pass tensors on the CPU");
  }
  const Current current(*this);
  kernels_->run(handle_of(stream), direction, reduction, pieces, buffer);
  return true;
}

}  // namespace perseus::cuda
