#include "cuda_fake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "device/cuda/pack_body.h"

namespace perseus::testing {

namespace {

using namespace cuda;  // NOLINT: the names of the driver's types

constexpr Result kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201, kNotFound = 500, kCaptureIsolation = 905;

FakeCuda* the_fake = nullptr;
thread_local std::vector<ContextHandle> contexts;
thread_local int capture_mode = 0;

// Contexts are numbers, one for each device.
ContextHandle context_of(DeviceNumber device) { return reinterpret_cast<ContextHandle>(std::intptr_t{device} + 1); }
DeviceNumber current_device() {
  return static_cast<DeviceNumber>(reinterpret_cast<std::intptr_t>(contexts.back())) - 1;
}

template <class Tensor, class Wire, bool packs>
void run_tiles(std::int64_t blocks, const Pointer& segments, int count, void* buffer, const void* scaling) {
  const auto* table = reinterpret_cast<const Segment*>(segments);
  const auto& factors = *static_cast<const Scaling*>(scaling);
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (int thread = 0; thread < kThreads; ++thread) {
      if (packs) {
        pack_tile<Tensor, Wire>(table, count, buffer, factors, {block, thread});
      } else {
        unpack_tile<Tensor, Wire>(table, count, buffer, factors, {block, thread});
      }
    }
  }
}

}  // namespace

// The functions of the table.
struct FakeCalls {
  using Lock = std::unique_lock<std::mutex>;

  static Result init(unsigned) { return the_fake->begin("cuInit", false); }
  static Result driver_version(int* version) {
    *version = the_fake->version_;
    return the_fake->begin("cuDriverGetVersion", false);
  }
  static Result error_name(Result, const char** text) {
    *text = "CUDA_ERROR_OF_THE_TEST";
    return kSuccess;
  }
  static Result error_string(Result, const char** text) {
    *text = "the test wants it so";
    return kSuccess;
  }
  static Result device_count(int* count) {
    *count = the_fake->devices_;
    return the_fake->begin("cuDeviceGetCount", false);
  }
  static Result device(DeviceNumber* device, int ordinal) {
    *device = ordinal;
    return the_fake->begin("cuDeviceGet", false);
  }
  static Result device_name(char* name, int length, DeviceNumber) {
    std::strncpy(name, "pretended", static_cast<std::size_t>(length));
    return the_fake->begin("cuDeviceGetName", false);
  }
  static Result device_attribute(int* value, int, DeviceNumber) {
    *value = the_fake->has_multicast_ ? 1 : 0;
    return the_fake->begin("cuDeviceGetAttribute", false);
  }
  static Result retain(ContextHandle* context, DeviceNumber device) {
    const auto result = the_fake->begin("cuDevicePrimaryCtxRetain", false);
    if (result == kSuccess) ++the_fake->retained_;
    *context = context_of(device);
    return result;
  }
  static Result release(DeviceNumber) {
    const auto result = the_fake->begin("cuDevicePrimaryCtxRelease", false);
    if (result == kSuccess) --the_fake->retained_;
    return result;
  }
  static Result push(ContextHandle context) {
    const auto result = the_fake->begin("cuCtxPushCurrent", false);
    if (result == kSuccess) contexts.push_back(context);
    return result;
  }
  static Result pop(ContextHandle* context) {
    if (contexts.empty()) return kInvalidContext;
    *context = contexts.back();
    contexts.pop_back();
    return kSuccess;
  }
  static Result set_current(ContextHandle context) {
    const auto result = the_fake->begin("cuCtxSetCurrent", false);
    if (result == kSuccess && !contexts.empty()) contexts.pop_back();
    if (result == kSuccess) contexts.push_back(context);
    return result;
  }
  static Result exchange_capture_mode(int* mode) {
    std::swap(*mode, capture_mode);
    return kSuccess;
  }
  static Result context_synchronize() {
    const auto result = the_fake->begin("cuCtxSynchronize");
    if (result != kSuccess) return result;
    Lock lock(the_fake->mutex_);
    the_fake->finish_all(lock, current_device());
    return kSuccess;
  }
  static Result stream_create(StreamHandle* stream, unsigned flags, int) {
    const auto result = the_fake->begin("cuStreamCreateWithPriority");
    if (result != kSuccess) return result;
    EXPECT_EQ(flags, 1U) << "the stream would wait for the default stream";
    *stream = reinterpret_cast<StreamHandle>(the_fake->make_stream(current_device()));
    return kSuccess;
  }
  static Result stream_destroy(StreamHandle stream) {
    const auto result = the_fake->begin("cuStreamDestroy");
    if (result != kSuccess) return result;
    the_fake->synchronize(reinterpret_cast<Stream>(stream));
    Lock lock(the_fake->mutex_);
    auto* queue = the_fake->queue_of(stream);
    queue->stop = true;
    the_fake->changed_.notify_all();
    lock.unlock();
    if (queue->thread.joinable()) queue->thread.join();
    lock.lock();
    the_fake->queues_.erase(stream);
    return kSuccess;
  }
  static Result stream_wait(StreamHandle stream, EventHandle event, unsigned) {
    const auto result = the_fake->begin("cuStreamWaitEvent");
    const Lock lock(the_fake->mutex_);
    auto mark = static_cast<FakeCuda::Event*>(event)->mark;
    if (result != kSuccess || !mark) return result;
    // The event is no part of the graph, whose capture ends with an error.
    if (the_fake->queue_of(stream)->capturing) return kCaptureIsolation;
    the_fake->put(*the_fake->queue_of(stream), {[] {}, std::move(mark), nullptr});
    return kSuccess;
  }
  static Result stream_is_capturing(StreamHandle stream, int* status) {
    const auto result = the_fake->begin("cuStreamIsCapturing");
    const Lock lock(the_fake->mutex_);
    *status = the_fake->queue_of(stream)->capturing ? 1 : 0;
    return result;
  }
  static Result event_create(EventHandle* event, unsigned) {
    const auto result = the_fake->begin("cuEventCreate");
    if (result != kSuccess) return result;
    const Lock lock(the_fake->mutex_);
    auto* made = new FakeCuda::Event;
    the_fake->events_.insert(made);
    *event = made;
    return kSuccess;
  }
  static Result event_destroy(EventHandle event) {
    const auto result = the_fake->begin("cuEventDestroy");
    const Lock lock(the_fake->mutex_);
    auto* mine = static_cast<FakeCuda::Event*>(event);
    EXPECT_EQ(the_fake->events_.erase(mine), 1U);
    delete mine;
    return result;
  }
  static Result event_record(EventHandle event, StreamHandle stream) {
    const auto result = the_fake->begin("cuEventRecord");
    if (result != kSuccess) return result;
    const Lock lock(the_fake->mutex_);
    auto* queue = the_fake->queue_of(stream);
    auto mark = std::make_shared<FakeCuda::Mark>(FakeCuda::Mark{queue, queue->given + 1, false});
    static_cast<FakeCuda::Event*>(event)->mark = mark;
    the_fake->put(*queue, {[] {}, nullptr, std::move(mark)});
    return kSuccess;
  }
  static Result event_query(EventHandle event) {
    const auto result = the_fake->begin("cuEventQuery");
    if (result != kSuccess) return result;
    const Lock lock(the_fake->mutex_);
    const auto& mark = static_cast<FakeCuda::Event*>(event)->mark;
    return !mark || mark->done ? kSuccess : kNotReady;
  }
  static Result event_synchronize(EventHandle event) {
    const auto result = the_fake->begin("cuEventSynchronize");
    if (result != kSuccess) return result;
    Lock lock(the_fake->mutex_);
    const auto mark = static_cast<FakeCuda::Event*>(event)->mark;
    if (mark && !mark->done) the_fake->run_to(*mark->queue, mark->number, lock);
    return kSuccess;
  }
  static Result new_memory(const char* call, void** memory, std::size_t bytes) {
    const auto result = the_fake->begin(call);
    if (result != kSuccess) return result;
    *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*memory == nullptr) return kOutOfMemory;
    std::memset(*memory, 0xa5, bytes);
    const Lock lock(the_fake->mutex_);
    the_fake->memory_.insert(*memory);
    return kSuccess;
  }
  // As in the driver, all work on the device ends first.
  static Result free_memory(const char* call, void* memory) {
    const auto result = the_fake->begin(call);
    if (result != kSuccess) return result;
    Lock lock(the_fake->mutex_);
    the_fake->finish_all(lock, current_device());
    if (the_fake->memory_.erase(memory) == 0) return kInvalidValue;
    std::free(memory);
    return kSuccess;
  }
  static Result allocate(Pointer* memory, std::size_t bytes) {
    return new_memory("cuMemAlloc", reinterpret_cast<void**>(memory), bytes);
  }
  static Result free(Pointer memory) { return free_memory("cuMemFree", reinterpret_cast<void*>(memory)); }
  static Result pool_create(PoolHandle* pool, const PoolProperties* properties) {
    const auto result = the_fake->begin("cuMemPoolCreate", false);
    if (result != kSuccess) return result;
    EXPECT_TRUE(properties->allocation_type == 1 && properties->location_type == 1 && properties->handle_types == 0);
    ++the_fake->pools_;
    *pool = &the_fake->pools_;
    return kSuccess;
  }
  static Result pool_destroy(PoolHandle) {
    --the_fake->pools_;
    return the_fake->begin("cuMemPoolDestroy", false);
  }
  static Result pool_set(PoolHandle, int attribute, void* value) {
    // Otherwise the pool makes one stream wait for another.
    if (attribute == kPoolReusesByDependencies) the_fake->reuses_by_dependencies_ = *static_cast<int*>(value) != 0;
    return the_fake->begin("cuMemPoolSetAttribute", false);
  }
  // Runs in the order of the stream; other streams may not have waited for it.
  static Result allocate_from_pool(Pointer* memory, std::size_t bytes, PoolHandle, StreamHandle stream) {
    const auto result = new_memory("cuMemAllocFromPoolAsync", reinterpret_cast<void**>(memory), bytes);
    if (result != kSuccess) return result;
    EXPECT_FALSE(the_fake->reuses_by_dependencies_) << "streams of two process sets would wait for each other";
    const Lock lock(the_fake->mutex_);
    the_fake->put(*the_fake->queue_of(stream), {[] {}, nullptr, nullptr});
    return kSuccess;
  }
  static Result free_async(Pointer memory, StreamHandle stream) {
    const auto result = the_fake->begin("cuMemFreeAsync");
    if (result != kSuccess) return result;
    const Lock lock(the_fake->mutex_);
    auto* address = reinterpret_cast<void*>(memory);
    if (the_fake->memory_.erase(address) == 0) return kInvalidValue;
    the_fake->put(*the_fake->queue_of(stream), {[address] { std::free(address); }, nullptr, nullptr});
    return kSuccess;
  }
  static Result allocate_host(void** memory, std::size_t bytes, unsigned) {
    return new_memory("cuMemHostAlloc", memory, bytes);
  }
  static Result free_host(void* memory) { return free_memory("cuMemFreeHost", memory); }
  static Result copy(Pointer to, Pointer from, std::size_t bytes, StreamHandle stream) {
    const auto result = the_fake->begin("cuMemcpyAsync");
    if (result != kSuccess) return result;
    const Lock lock(the_fake->mutex_);
    the_fake->put(*the_fake->queue_of(stream),
                  {[=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); },
                   nullptr, nullptr});
    return kSuccess;
  }
  static Result set_bytes(Pointer memory, unsigned char value, std::size_t bytes, StreamHandle stream) {
    const auto result = the_fake->begin("cuMemsetD8Async");
    if (result != kSuccess) return result;
    const Lock lock(the_fake->mutex_);
    the_fake->put(*the_fake->queue_of(stream),
                  {[=] { std::memset(reinterpret_cast<void*>(memory), value, bytes); }, nullptr, nullptr});
    return kSuccess;
  }
  static Result module_load(ModuleHandle* module, const void*, unsigned, const int*, void**) {
    const auto result = the_fake->begin("cuModuleLoadDataEx");
    if (result == kSuccess) ++the_fake->modules_;
    *module = &the_fake->modules_;
    return result;
  }
  static Result module_unload(ModuleHandle) {
    --the_fake->modules_;
    return the_fake->begin("cuModuleUnload");
  }
  static Result module_function(FunctionHandle* function, ModuleHandle, const char* name) {
    const auto result = the_fake->begin("cuModuleGetFunction");
    if (result != kSuccess) return result;
    const auto found = the_fake->functions_.find(name);
    if (found == the_fake->functions_.end()) return kNotFound;
    *function = found->second.get();
    return kSuccess;
  }
  static Result launch(FunctionHandle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                       unsigned, unsigned, StreamHandle stream, void** arguments, void**) {
    const auto result = the_fake->begin("cuLaunchKernel");
    if (result != kSuccess) return result;
    EXPECT_TRUE(x > 0 && y == 1 && z == 1 && threads == static_cast<unsigned>(kThreads));
    auto* kernel = static_cast<FakeCuda::Function*>(function);
    const auto segments = *static_cast<Pointer*>(arguments[0]);
    const auto count = *static_cast<int*>(arguments[1]);
    auto* buffer = *static_cast<void**>(arguments[2]);
    const auto scaling = *static_cast<Scaling*>(arguments[3]);
    const Lock lock(the_fake->mutex_);
    the_fake->launched_.push_back(kernel->name);
    the_fake->put(*the_fake->queue_of(stream),
                  {[=] { kernel->run(x, segments, count, buffer, &scaling); }, nullptr, nullptr});
    return kSuccess;
  }
};

FakeCuda::FakeCuda(FakeStreams streams, int devices) : streams_(streams), devices_(devices) {
  EXPECT_EQ(the_fake, nullptr) << "only one FakeCuda may exist at a time";
  the_fake = this;
  driver_ = {
      .init = &FakeCalls::init,
      .driver_version = &FakeCalls::driver_version,
      .error_name = &FakeCalls::error_name,
      .error_string = &FakeCalls::error_string,
      .device_count = &FakeCalls::device_count,
      .device = &FakeCalls::device,
      .device_name = &FakeCalls::device_name,
      .device_attribute = &FakeCalls::device_attribute,
      .retain = &FakeCalls::retain,
      .release = &FakeCalls::release,
      .push = &FakeCalls::push,
      .pop = &FakeCalls::pop,
      .set_current = &FakeCalls::set_current,
      .exchange_capture_mode = &FakeCalls::exchange_capture_mode,
      .context_synchronize = &FakeCalls::context_synchronize,
      .stream_create = &FakeCalls::stream_create,
      .stream_destroy = &FakeCalls::stream_destroy,
      .stream_wait = &FakeCalls::stream_wait,
      .stream_is_capturing = &FakeCalls::stream_is_capturing,
      .event_create = &FakeCalls::event_create,
      .event_destroy = &FakeCalls::event_destroy,
      .event_record = &FakeCalls::event_record,
      .event_query = &FakeCalls::event_query,
      .event_synchronize = &FakeCalls::event_synchronize,
      .allocate = &FakeCalls::allocate,
      .free = &FakeCalls::free,
      .pool_create = &FakeCalls::pool_create,
      .pool_destroy = &FakeCalls::pool_destroy,
      .pool_set = &FakeCalls::pool_set,
      .allocate_from_pool = &FakeCalls::allocate_from_pool,
      .free_async = &FakeCalls::free_async,
      .allocate_host = &FakeCalls::allocate_host,
      .free_host = &FakeCalls::free_host,
      .copy = &FakeCalls::copy,
      .set_bytes = &FakeCalls::set_bytes,
      .module_load = &FakeCalls::module_load,
      .module_unload = &FakeCalls::module_unload,
      .module_function = &FakeCalls::module_function,
      .launch = &FakeCalls::launch,
  };
  const auto add = [this](const std::string& name, auto run) {
    functions_[name] = std::make_unique<Function>(Function{name, std::move(run)});
  };
#define PERSEUS_HOST_KERNELS(tensor, wire, Tensor, Wire)                  \
  add("perseus_pack_" #tensor "_" #wire, &run_tiles<Tensor, Wire, true>); \
  add("perseus_unpack_" #tensor "_" #wire, &run_tiles<Tensor, Wire, false>);
  PERSEUS_PACKINGS(PERSEUS_HOST_KERNELS)
#undef PERSEUS_HOST_KERNELS
}

FakeCuda::~FakeCuda() {
  {
    std::unique_lock lock(mutex_);
    for (int device = 0; device < std::max(devices_, 1); ++device) finish_all(lock, device);
    for (auto& [handle, queue] : queues_) queue->stop = true;
    changed_.notify_all();
  }
  for (auto& [handle, queue] : queues_) {
    if (queue->thread.joinable()) queue->thread.join();
  }
  if (left_ == 0) {
    EXPECT_EQ(retained_, 0) << "primary contexts were not released";
    EXPECT_EQ(modules_, 0) << "modules were not unloaded";
    EXPECT_EQ(pools_, 0) << "memory pools were not destroyed";
    EXPECT_TRUE(events_.empty()) << events_.size() << " events were not destroyed";
  }
  EXPECT_EQ(memory_.size(), left_) << "the number of blocks of memory that were not freed";
  EXPECT_EQ(capture_mode, 0);
  EXPECT_TRUE(contexts.empty()) << "the current device was not restored";
  the_fake = nullptr;
}

Result FakeCuda::begin(const char* call, bool needs_context) {
  const std::scoped_lock lock(mutex_);
  ++calls_[call];
  if (needs_context && contexts.empty()) return kInvalidContext;
  const auto found = failures_.find(call);
  return found == failures_.end() ? kSuccess : found->second;
}

void FakeCuda::fail(const std::string& call, Result result) {
  const std::scoped_lock lock(mutex_);
  failures_.erase(call);
  if (result != kSuccess) failures_[call] = result;
}

int FakeCuda::calls(const std::string& call) {
  const std::scoped_lock lock(mutex_);
  return calls_[call];
}

int FakeCuda::pushed() { return static_cast<int>(contexts.size()); }
int FakeCuda::current() { return contexts.empty() ? -1 : current_device(); }

std::vector<std::string> FakeCuda::launched() {
  const std::scoped_lock lock(mutex_);
  return launched_;
}

}  // namespace perseus::testing
