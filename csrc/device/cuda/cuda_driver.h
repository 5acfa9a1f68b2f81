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

struct Driver {
  Result (*init)(unsigned flags);
  Result (*driver_version)(int* version);
  Result (*error_name)(Result, const char** text);
  Result (*error_string)(Result, const char** text);
  Result (*device_count)(int* count);
  Result (*device)(DeviceNumber*, int ordinal);
  Result (*device_name)(char* name, int length, DeviceNumber);
  Result (*device_attribute)(int* value, int attribute, DeviceNumber);
  Result (*retain)(ContextHandle*, DeviceNumber);
  Result (*release)(DeviceNumber);
  Result (*push)(ContextHandle);
  Result (*pop)(ContextHandle*);
  Result (*set_current)(ContextHandle);
  Result (*exchange_capture_mode)(int* mode);
  Result (*context_synchronize)();
  Result (*stream_create)(StreamHandle*, unsigned flags, int priority);
  Result (*stream_destroy)(StreamHandle);
  Result (*stream_wait)(StreamHandle, EventHandle, unsigned flags);
  Result (*stream_is_capturing)(StreamHandle, int* status);
  Result (*event_create)(EventHandle*, unsigned flags);
  Result (*event_destroy)(EventHandle);
  Result (*event_record)(EventHandle, StreamHandle);
  Result (*event_query)(EventHandle);
  Result (*event_synchronize)(EventHandle);
  Result (*allocate)(Pointer*, std::size_t bytes);
  Result (*free)(Pointer);
  // Null before CUDA 11.2.
  Result (*pool_create)(PoolHandle*, const PoolProperties*);
  Result (*pool_destroy)(PoolHandle);
  Result (*pool_set)(PoolHandle, int attribute, void* value);
  Result (*allocate_from_pool)(Pointer*, std::size_t bytes, PoolHandle, StreamHandle);
  Result (*free_async)(Pointer, StreamHandle);
  Result (*allocate_host)(void**, std::size_t bytes, unsigned flags);
  Result (*free_host)(void*);
  Result (*copy)(Pointer to, Pointer from, std::size_t bytes, StreamHandle);
  Result (*set_bytes)(Pointer, unsigned char value, std::size_t bytes, StreamHandle);
  Result (*module_load)(ModuleHandle*, const void* image, unsigned options, const int* names, void** values);
  Result (*module_unload)(ModuleHandle);
  Result (*module_function)(FunctionHandle*, ModuleHandle, const char* name);
  Result (*launch)(FunctionHandle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle, void** arguments,
                   void** extra);

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
