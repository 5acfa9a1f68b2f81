// The fake library as a libnccl.so.2, which processes find and open like the real one. It supports jobs with one rank,
// because ranks of the fake library are threads of one process. It uses the streams of the libcuda.so.1 of
// ../fake_cuda.
#include <dlfcn.h>

#include "xccl_fake.h"

namespace {

using namespace perseus::xccl;  // NOLINT: the names of the library's types

using Enqueue = void (*)(std::uintptr_t stream, std::function<void()>* work);

Enqueue streams_of_fake_cuda() {
  auto* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Enqueue>(::dlsym(driver, "fakeEnqueue"));
}

// These live as long as the process.
perseus::testing::FakeOrders& orders() {
  static auto* the_one = [] {
    auto* made = new perseus::testing::FakeOrders;
    made->enqueue = [enqueue = streams_of_fake_cuda()](Stream stream, std::function<void()> work) {
      if (enqueue == nullptr) return work();
      enqueue(reinterpret_cast<std::uintptr_t>(stream), &work);
    };
    return made;
  }();
  return *the_one;
}

const Functions& fake() {
  static const auto* library = new auto(perseus::testing::queued_library(/*background_calls=*/true));
  orders();
  return (*library)->call;
}

}  // namespace

#define PERSEUS_EXPORT extern "C" __attribute__((visibility("default")))

// Returns the number of registered buffers, for tests.
PERSEUS_EXPORT int fakeRegistered() { return orders().registered - orders().deregistered; }

// Makes work that is queued fail with this code, as a lost network connection does, for tests.
PERSEUS_EXPORT void fakeFailLater(int code) { orders().async_error = code; }

PERSEUS_EXPORT int ncclGetVersion(int* a) {
  *a = 22807;
  return 0;
}
PERSEUS_EXPORT int ncclGetUniqueId(UniqueId* a) { return fake().get_unique_id(a); }
PERSEUS_EXPORT int ncclCommInitRank(Comm* a, std::size_t b, UniqueId c, int d) {
  return fake().comm_init_rank(a, b, c, d);
}
PERSEUS_EXPORT int ncclCommInitRankConfig(Comm* a, std::size_t b, UniqueId c, int d, CommConfig* e) {
  return fake().comm_init_rank_config(a, b, c, d, e);
}
PERSEUS_EXPORT int ncclCommDestroy(Comm a) { return fake().comm_destroy(a); }
PERSEUS_EXPORT int ncclCommAbort(Comm a) { return fake().comm_abort(a); }
PERSEUS_EXPORT int ncclCommGetAsyncError(Comm a, int* b) { return fake().comm_get_async_error(a, b); }
PERSEUS_EXPORT const char* ncclGetErrorString(int a) { return fake().get_error_string(a); }
PERSEUS_EXPORT const char* ncclGetLastError(Comm a) { return fake().get_last_error(a); }
PERSEUS_EXPORT int ncclAllReduce(const void* a, void* b, std::size_t c, DataType d, Op e, Comm f, Stream g) {
  return fake().all_reduce(a, b, c, d, e, f, g);
}
PERSEUS_EXPORT int ncclBroadcast(const void* a, void* b, std::size_t c, DataType d, int e, Comm f, Stream g) {
  return fake().broadcast(a, b, c, d, e, f, g);
}
PERSEUS_EXPORT int ncclReduce(const void* a, void* b, std::size_t c, DataType d, Op e, int f, Comm g, Stream h) {
  return fake().reduce(a, b, c, d, e, f, g, h);
}
PERSEUS_EXPORT int ncclAllGather(const void* a, void* b, std::size_t c, DataType d, Comm e, Stream f) {
  return fake().all_gather(a, b, c, d, e, f);
}
PERSEUS_EXPORT int ncclReduceScatter(const void* a, void* b, std::size_t c, DataType d, Op e, Comm f, Stream g) {
  return fake().reduce_scatter(a, b, c, d, e, f, g);
}
PERSEUS_EXPORT int ncclSend(const void* a, std::size_t b, DataType c, int d, Comm e, Stream f) {
  return fake().send(a, b, c, d, e, f);
}
PERSEUS_EXPORT int ncclRecv(void* a, std::size_t b, DataType c, int d, Comm e, Stream f) {
  return fake().recv(a, b, c, d, e, f);
}
PERSEUS_EXPORT int ncclGroupStart() { return fake().group_start(); }
PERSEUS_EXPORT int ncclGroupEnd() { return fake().group_end(); }
PERSEUS_EXPORT int ncclRedOpCreatePreMulSum(Op* a, void* b, DataType c, int d, Comm e) {
  return fake().red_op_create_pre_mul_sum(a, b, c, d, e);
}
PERSEUS_EXPORT int ncclRedOpDestroy(Op a, Comm b) { return fake().red_op_destroy(a, b); }
PERSEUS_EXPORT int ncclCommRegister(Comm a, void* b, std::size_t c, void** d) {
  return fake().comm_register(a, b, c, d);
}
PERSEUS_EXPORT int ncclCommDeregister(Comm a, void* b) { return fake().comm_deregister(a, b); }
