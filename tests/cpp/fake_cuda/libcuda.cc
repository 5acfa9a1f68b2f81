// The fake driver as a libcuda.so.1, which processes find and open like the real one.
// The device's memory is host memory, so that tensors on the CPU can be passed as tensors on the device. Calls return
// when all work is done. With FAKE_CUDA_STREAMS=late, a stream executes work only when a thread waits for it. There are
// FAKE_CUDA_DEVICES devices, or 8.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "cuda_fake.h"

namespace perseus::testing {
namespace {

using namespace cuda;  // NOLINT: the names of the driver's types

// Lives as long as the process.
FakeCuda& fake_cuda() {
  static auto* the_one = [] {
    const char* asked = std::getenv("FAKE_CUDA_STREAMS");
    const bool late = asked != nullptr && std::string_view(asked) == "late";
    const char* devices = std::getenv("FAKE_CUDA_DEVICES");
    return new FakeCuda(late ? FakeStreams::late : FakeStreams::eager,
                        devices == nullptr ? 8 : static_cast<int>(std::strtol(devices, nullptr, 10)));
  }();
  return *the_one;
}

const Driver& fake() { return fake_cuda().driver(); }

}  // namespace
}  // namespace perseus::testing

using namespace perseus::cuda;  // NOLINT

#define PERSEUS_EXPORT extern "C" __attribute__((visibility("default"))) Result

// The functions that a framework calls itself: its streams, and waiting for one of them.
extern "C" __attribute__((visibility("default"))) std::uintptr_t fakeMakeStream() {
  return perseus::testing::fake_cuda().make_stream();
}
extern "C" __attribute__((visibility("default"))) void fakeSynchronize(std::uintptr_t stream) {
  perseus::testing::fake_cuda().synchronize(stream);
}
extern "C" __attribute__((visibility("default"))) void fakeCopy(std::uintptr_t stream, void* to, const void* from,
                                                                std::size_t bytes) {
  perseus::testing::fake_cuda().enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
extern "C" __attribute__((visibility("default"))) void fakeEnqueue(std::uintptr_t stream, std::function<void()>* work) {
  perseus::testing::fake_cuda().enqueue(stream, std::move(*work));
}

PERSEUS_EXPORT cuInit(unsigned a) { return perseus::testing::fake().init(a); }
PERSEUS_EXPORT cuDriverGetVersion(int* a) { return perseus::testing::fake().driver_version(a); }
PERSEUS_EXPORT cuGetErrorName(Result a, const char** b) { return perseus::testing::fake().error_name(a, b); }
PERSEUS_EXPORT cuGetErrorString(Result a, const char** b) { return perseus::testing::fake().error_string(a, b); }
PERSEUS_EXPORT cuDeviceGetCount(int* a) { return perseus::testing::fake().device_count(a); }
PERSEUS_EXPORT cuDeviceGet(DeviceNumber* a, int b) { return perseus::testing::fake().device(a, b); }
PERSEUS_EXPORT cuDeviceGetName(char* a, int b, DeviceNumber c) { return perseus::testing::fake().device_name(a, b, c); }
PERSEUS_EXPORT cuDeviceGetAttribute(int* a, int b, DeviceNumber c) {
  return perseus::testing::fake().device_attribute(a, b, c);
}
PERSEUS_EXPORT cuDevicePrimaryCtxRetain(ContextHandle* a, DeviceNumber b) {
  return perseus::testing::fake().retain(a, b);
}
PERSEUS_EXPORT cuDevicePrimaryCtxRelease_v2(DeviceNumber a) { return perseus::testing::fake().release(a); }
PERSEUS_EXPORT cuCtxPushCurrent_v2(ContextHandle a) { return perseus::testing::fake().push(a); }
PERSEUS_EXPORT cuCtxPopCurrent_v2(ContextHandle* a) { return perseus::testing::fake().pop(a); }
PERSEUS_EXPORT cuCtxSetCurrent(ContextHandle a) { return perseus::testing::fake().set_current(a); }
PERSEUS_EXPORT cuThreadExchangeStreamCaptureMode(int* a) { return perseus::testing::fake().exchange_capture_mode(a); }
PERSEUS_EXPORT cuCtxSynchronize() { return perseus::testing::fake().context_synchronize(); }
PERSEUS_EXPORT cuStreamCreateWithPriority(StreamHandle* a, unsigned b, int c) {
  return perseus::testing::fake().stream_create(a, b, c);
}
PERSEUS_EXPORT cuStreamDestroy_v2(StreamHandle a) { return perseus::testing::fake().stream_destroy(a); }
PERSEUS_EXPORT cuStreamWaitEvent(StreamHandle a, EventHandle b, unsigned c) {
  return perseus::testing::fake().stream_wait(a, b, c);
}
PERSEUS_EXPORT cuStreamIsCapturing(StreamHandle a, int* b) {
  return perseus::testing::fake().stream_is_capturing(a, b);
}
PERSEUS_EXPORT cuEventCreate(EventHandle* a, unsigned b) { return perseus::testing::fake().event_create(a, b); }
PERSEUS_EXPORT cuEventDestroy_v2(EventHandle a) { return perseus::testing::fake().event_destroy(a); }
PERSEUS_EXPORT cuEventRecord(EventHandle a, StreamHandle b) { return perseus::testing::fake().event_record(a, b); }
PERSEUS_EXPORT cuEventQuery(EventHandle a) { return perseus::testing::fake().event_query(a); }
PERSEUS_EXPORT cuEventSynchronize(EventHandle a) { return perseus::testing::fake().event_synchronize(a); }
PERSEUS_EXPORT cuMemAlloc_v2(Pointer* a, std::size_t b) { return perseus::testing::fake().allocate(a, b); }
PERSEUS_EXPORT cuMemFree_v2(Pointer a) { return perseus::testing::fake().free(a); }
PERSEUS_EXPORT cuMemPoolCreate(PoolHandle* a, const PoolProperties* b) {
  return perseus::testing::fake().pool_create(a, b);
}
PERSEUS_EXPORT cuMemPoolDestroy(PoolHandle a) { return perseus::testing::fake().pool_destroy(a); }
PERSEUS_EXPORT cuMemPoolSetAttribute(PoolHandle a, int b, void* c) {
  return perseus::testing::fake().pool_set(a, b, c);
}
PERSEUS_EXPORT cuMemAllocFromPoolAsync(Pointer* a, std::size_t b, PoolHandle c, StreamHandle d) {
  return perseus::testing::fake().allocate_from_pool(a, b, c, d);
}
PERSEUS_EXPORT cuMemFreeAsync(Pointer a, StreamHandle b) { return perseus::testing::fake().free_async(a, b); }
PERSEUS_EXPORT cuMemHostAlloc(void** a, std::size_t b, unsigned c) {
  return perseus::testing::fake().allocate_host(a, b, c);
}
PERSEUS_EXPORT cuMemFreeHost(void* a) { return perseus::testing::fake().free_host(a); }
PERSEUS_EXPORT cuMemcpyAsync(Pointer a, Pointer b, std::size_t c, StreamHandle d) {
  return perseus::testing::fake().copy(a, b, c, d);
}
PERSEUS_EXPORT cuMemsetD8Async(Pointer a, unsigned char b, std::size_t c, StreamHandle d) {
  return perseus::testing::fake().set_bytes(a, b, c, d);
}
PERSEUS_EXPORT cuModuleLoadDataEx(ModuleHandle* a, const void* b, unsigned c, const int* d, void** e) {
  return perseus::testing::fake().module_load(a, b, c, d, e);
}
PERSEUS_EXPORT cuModuleUnload(ModuleHandle a) { return perseus::testing::fake().module_unload(a); }
PERSEUS_EXPORT cuModuleGetFunction(FunctionHandle* a, ModuleHandle b, const char* c) {
  return perseus::testing::fake().module_function(a, b, c);
}
PERSEUS_EXPORT cuLaunchKernel(FunctionHandle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, StreamHandle stream, void** arguments, void** extra) {
  return perseus::testing::fake().launch(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}
