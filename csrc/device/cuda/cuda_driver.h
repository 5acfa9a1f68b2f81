// Declares the functions of CUDA's driver that are used here. libcuda is opened at run time, and tests provide a table
// of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace perseus::cuda {

// CUDA's own types by their size, so that the build does not need its header.
using Result = int;
using DeviceNumber = int;
using ContextHandle = void*;
using StreamHandle = void*;
using EventHandle = void*;
using ModuleHandle = void*;
using FunctionHandle = void*;
using PoolHandle = void*;
using Pointer = std::uint64_t;

inline constexpr Result kSuccess = 0;
inline constexpr unsigned kNoTiming = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr Result kNotReady = 600;

// CUmemPoolProps for the memory of one device, which no other process opens.
struct PoolProperties {
  int allocation_type = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED
  int handle_types = 0;     // CU_MEM_HANDLE_TYPE_NONE
  int location_type = 1;    // CU_MEM_LOCATION_TYPE_DEVICE
  DeviceNumber device = 0;
  void* security = nullptr;
  unsigned char reserved[64] = {};
};

inline constexpr int kPoolReusesByDependencies = 3;  // CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, an int
inline constexpr int kPoolReleaseThreshold = 4;      // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, a uint64

// REQUIRED(member, name, parameters) and OPTIONAL(…), for functions that are null before CUDA 11.2.
#define PERSEUS_CUDA_FUNCTIONS(REQUIRED, OPTIONAL)                                                                 \
  REQUIRED(init, "cuInit", (unsigned flags))                                                                       \
  REQUIRED(driver_version, "cuDriverGetVersion", (int* version))                                                   \
  REQUIRED(error_name, "cuGetErrorName", (Result, const char** text))                                              \
  REQUIRED(error_string, "cuGetErrorString", (Result, const char** text))                                          \
  REQUIRED(device_count, "cuDeviceGetCount", (int* count))                                                         \
  REQUIRED(device, "cuDeviceGet", (DeviceNumber*, int ordinal))                                                    \
  REQUIRED(device_name, "cuDeviceGetName", (char* name, int length, DeviceNumber))                                 \
  REQUIRED(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, DeviceNumber))                    \
  REQUIRED(retain, "cuDevicePrimaryCtxRetain", (ContextHandle*, DeviceNumber))                                     \
  REQUIRED(release, "cuDevicePrimaryCtxRelease_v2", (DeviceNumber))                                                \
  REQUIRED(push, "cuCtxPushCurrent_v2", (ContextHandle))                                                           \
  REQUIRED(pop, "cuCtxPopCurrent_v2", (ContextHandle*))                                                            \
  REQUIRED(set_current, "cuCtxSetCurrent", (ContextHandle))                                                        \
  REQUIRED(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))                                \
  REQUIRED(context_synchronize, "cuCtxSynchronize", ())                                                            \
  REQUIRED(stream_create, "cuStreamCreateWithPriority", (StreamHandle*, unsigned flags, int priority))             \
  REQUIRED(stream_destroy, "cuStreamDestroy_v2", (StreamHandle))                                                   \
  REQUIRED(stream_wait, "cuStreamWaitEvent", (StreamHandle, EventHandle, unsigned flags))                          \
  REQUIRED(stream_is_capturing, "cuStreamIsCapturing", (StreamHandle, int* status))                                \
  REQUIRED(event_create, "cuEventCreate", (EventHandle*, unsigned flags))                                          \
  REQUIRED(event_destroy, "cuEventDestroy_v2", (EventHandle))                                                      \
  REQUIRED(event_record, "cuEventRecord", (EventHandle, StreamHandle))                                             \
  REQUIRED(event_query, "cuEventQuery", (EventHandle))                                                             \
  REQUIRED(event_synchronize, "cuEventSynchronize", (EventHandle))                                                 \
  REQUIRED(allocate, "cuMemAlloc_v2", (Pointer*, std::size_t bytes))                                               \
  REQUIRED(free, "cuMemFree_v2", (Pointer))                                                                        \
  OPTIONAL(pool_create, "cuMemPoolCreate", (PoolHandle*, const PoolProperties*))                                   \
  OPTIONAL(pool_destroy, "cuMemPoolDestroy", (PoolHandle))                                                         \
  OPTIONAL(pool_set, "cuMemPoolSetAttribute", (PoolHandle, int attribute, void* value))                            \
  OPTIONAL(allocate_from_pool, "cuMemAllocFromPoolAsync", (Pointer*, std::size_t bytes, PoolHandle, StreamHandle)) \
  OPTIONAL(free_async, "cuMemFreeAsync", (Pointer, StreamHandle))                                                  \
  REQUIRED(allocate_host, "cuMemHostAlloc", (void**, std::size_t bytes, unsigned flags))                           \
  REQUIRED(free_host, "cuMemFreeHost", (void*))                                                                    \
  REQUIRED(copy, "cuMemcpyAsync", (Pointer to, Pointer from, std::size_t bytes, StreamHandle))                     \
  REQUIRED(set_bytes, "cuMemsetD8Async", (Pointer, unsigned char value, std::size_t bytes, StreamHandle))          \
  REQUIRED(module_load, "cuModuleLoadDataEx",                                                                      \
           (ModuleHandle*, const void* image, unsigned options, const int* names, void** values))                  \
  REQUIRED(module_unload, "cuModuleUnload", (ModuleHandle))                                                        \
  REQUIRED(module_function, "cuModuleGetFunction", (FunctionHandle*, ModuleHandle, const char* name))              \
  REQUIRED(launch, "cuLaunchKernel",                                                                               \
           (FunctionHandle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
            unsigned block_z, unsigned shared_bytes, StreamHandle, void** arguments, void** extra))

struct Driver {
#define PERSEUS_MEMBER(member, name, parameters) Result(*member) parameters;
  PERSEUS_CUDA_FUNCTIONS(PERSEUS_MEMBER, PERSEUS_MEMBER)
#undef PERSEUS_MEMBER

  // Returns a text such as "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  std::string text(const char* call, Result result) const;
  // Throws Error(transport) with that text if the call has failed, or Error(unavailable) if there is no memory.
  void check(const char* call, Result result) const;
};

// Returns the machine's driver, which the first call opens and starts and which is never closed. Throws
// Error(unavailable) that says what to do if there is no libcuda, if it is too old, or if it finds no device.
const Driver& driver();

inline constexpr const char* kDriverLibrary = "libcuda.so.1";

// Opens a library of this name. Throws Error(unavailable).
Driver open_driver(const char* library);

// Starts the driver and checks its version. Throws Error(unavailable).
void start_driver(const Driver& driver);

}  // namespace perseus::cuda
