#include "xccl_fake.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "device/host/kernels.h"
#include "xccl_fake_communicators.h"

namespace perseus::testing {
namespace {

using xccl::Comm;
using xccl::DataType;
using xccl::Op;
using xccl::UniqueId;

DType dtype_of(DataType type) {
  switch (type) {
    case DataType::int8: return DType::int8;
    case DataType::uint8: return DType::uint8;
    case DataType::int32: return DType::int32;
    case DataType::int64: return DType::int64;
    case DataType::float16: return DType::float16;
    case DataType::float32: return DType::float32;
    case DataType::float64: return DType::float64;
    case DataType::bfloat16: return DType::bfloat16;
  }
  std::abort();
}

// The calls of a thread since group_start(), which are queued as one.
struct Batch {
  int depth = 0;
  std::vector<std::function<int()>> sends, others;
  std::vector<Comm> aborts;
  xccl::Stream stream = nullptr;
  std::shared_ptr<FakeComm> comm;  // of the last send or receive
};
thread_local Batch batch;

void put_on(xccl::Stream stream, const std::function<int()>& work) {
  const auto* current = fake_orders();
  if (current != nullptr && current->enqueue) {
    current->enqueue(stream, work);
  } else {
    static_cast<FakeStream*>(stream)->add(work);
  }
}

std::function<int()> queued_on(const std::shared_ptr<FakeComm>& comm, std::function<int()> work) {
  begin_queued(*comm);
  return [comm, work = std::move(work)] {
    const int code = work();
    if (code != xccl::kSuccess) comm->async_error = code;
    end_queued(*comm);
    return code;
  };
}

// Runs now if there is no stream, else in the order of the stream. `connect` comes before.
int launch(
    const std::shared_ptr<FakeComm>& comm, xccl::Stream stream, const std::function<int()>& work,
    const std::function<int()>& connect = [] { return xccl::kSuccess; }) {
  return execute(comm, [=] {
    const int code = connect();
    if (code != xccl::kSuccess) return code;
    if (stream == nullptr) return work();
    put_on(stream, queued_on(comm, work));
    return xccl::kSuccess;
  });
}

// Begins a send or a receive. Those of a group are launched at its end.
int launch_message(const std::shared_ptr<FakeComm>& comm, xccl::Stream stream, const std::function<int()>& work,
                   bool is_send) {
  if (stream == nullptr || batch.depth == 0) return launch(comm, stream, work);
  batch.stream = stream;
  batch.comm = comm;
  (is_send ? batch.sends : batch.others).push_back(queued_on(comm, work));
  return xccl::kSuccess;
}

int group_start() {
  ++batch.depth;
  return xccl::kSuccess;
}

int group_end() {
  if (--batch.depth > 0) return xccl::kSuccess;
  const auto all = std::exchange(batch, {});
  if (!all.aborts.empty()) return fake_abort(all.aborts);
  if (all.comm == nullptr) return xccl::kSuccess;
  return execute(all.comm, [all] {
    // All messages are sent before the first wait.
    for (const auto& work : all.sends) put_on(all.stream, work);
    for (const auto& work : all.others) put_on(all.stream, work);
    return xccl::kSuccess;
  });
}

int collective(FakeComm& comm, const FakeCall& call) {
  std::vector<FakeCall> all;
  if (!comm.group->meet(comm.rank, call, all)) return kFakeAborted;
  const auto result = all[static_cast<std::size_t>(comm.rank)].result(all, comm.rank);
  if (!comm.group->barrier()) return kFakeAborted;
  if (call.out != nullptr) std::memcpy(call.out, result.data(), result.size());
  return comm.group->barrier() ? xccl::kSuccess : kFakeAborted;
}

const char* bytes_of(const FakeCall& call) { return static_cast<const char*>(call.in); }

// The reduction of `count` elements that lie `at` bytes into every rank's input.
std::string reduced(const std::vector<FakeCall>& all, std::size_t at, std::size_t count, DataType type, Op op,
                    double factor) {
  Reduction reduction;
  reduction.dtype = reduction.wire_dtype = dtype_of(type);
  reduction.op = op == xccl::kProduct ? ReduceOp::product
                 : op == xccl::kMax   ? ReduceOp::max
                 : op == xccl::kMin   ? ReduceOp::min
                                      : ReduceOp::sum;
  reduction.scale.pre = factor;
  std::string result(count * size_of(reduction.dtype), '\0');
  if (count == 0) return result;
  std::vector<const void*> from;
  for (const auto& call : all) from.push_back(bytes_of(call) + at);
  void* to = result.data();
  host::ReduceCall call;
  call.reduction = reduction;
  call.from = from;
  call.to = std::span<void* const>(&to, 1);
  call.count = static_cast<std::int64_t>(count);
  host::reduce(call);
  // NCCL before 2.29.7 does not scale the last elements of a single rank's data; which these are depends on the size.
  if (all.size() == 1 && factor != 1.0) {
    const auto scaled = (count - 1) * size_of(reduction.dtype);
    result.replace(scaled, std::string::npos, bytes_of(all.front()) + at + scaled, size_of(reduction.dtype));
  }
  return result;
}

double factor_of(const FakeComm& comm, Op op) { return op < xccl::kFirstOwnOp ? 1.0 : comm.factors.at(op); }

std::size_t width(DataType type) { return size_of(dtype_of(type)); }

int all_reduce(const void* in, void* out, std::size_t count, DataType type, Op op, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto* current = fake_orders();
  if (current != nullptr && current->fail_all_reduce != 0 && current->fail_rank == mine->rank)
    return current->fail_all_reduce;
  const auto connect = [current, mine] {
    if (current != nullptr && current->in_all_reduce) current->in_all_reduce(mine->rank);
    if (current == nullptr || !current->all_reduce_waits_for_peers) return xccl::kSuccess;
    mine->group->wait_for_abort();
    return kFakeAborted;
  };
  const auto result = [=, factor = factor_of(*mine, op)](const std::vector<FakeCall>& all, int) {
    return reduced(all, 0, count, type, op, factor);
  };
  return launch(mine, stream, [=] { return collective(*mine, {result, in, out}); }, connect);
}

int broadcast(const void* in, void* out, std::size_t count, DataType type, int root, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto result = [=](const std::vector<FakeCall>& all, int) {
    return std::string(bytes_of(all[static_cast<std::size_t>(root)]), count * width(type));
  };
  return launch(mine, stream, [=] { return collective(*mine, {result, in, out}); });
}

int reduce(const void* in, void* out, std::size_t count, DataType type, Op op, int root, Comm comm,
           xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto result = [=, factor = factor_of(*mine, op)](const std::vector<FakeCall>& all, int rank) {
    // The memory for the result is also used on other ranks.
    return rank == root ? reduced(all, 0, count, type, op, factor) : std::string(count * width(type), '?');
  };
  return launch(mine, stream, [=] { return collective(*mine, {result, in, out}); });
}

int all_gather(const void* in, void* out, std::size_t count, DataType type, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto result = [=](const std::vector<FakeCall>& all, int) {
    std::string bytes;
    for (const auto& call : all) bytes.append(bytes_of(call), count * width(type));
    return bytes;
  };
  return launch(mine, stream, [=] { return collective(*mine, {result, in, out}); });
}

int reduce_scatter(const void* in, void* out, std::size_t count, DataType type, Op op, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto result = [=, factor = factor_of(*mine, op)](const std::vector<FakeCall>& all, int rank) {
    return reduced(all, static_cast<std::size_t>(rank) * count * width(type), count, type, op, factor);
  };
  return launch(mine, stream, [=] { return collective(*mine, {result, in, out}); });
}

int all_to_all(const void* in, void* out, std::size_t count, DataType type, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto result = [=](const std::vector<FakeCall>& all, int rank) {
    std::string bytes;
    const auto part = count * width(type);
    for (const auto& call : all) bytes.append(bytes_of(call) + static_cast<std::size_t>(rank) * part, part);
    return bytes;
  };
  return launch(mine, stream, [=] { return collective(*mine, {result, in, out}); });
}

int send(const void* data, std::size_t count, DataType type, int peer, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto* current = fake_orders();
  if (current != nullptr && current->fail_send != 0 && current->fail_rank == mine->rank) return current->fail_send;
  const auto work = [=] {
    mine->group->put(mine->rank, peer, std::string(static_cast<const char*>(data), count * width(type)));
    return xccl::kSuccess;
  };
  return launch_message(mine, stream, work, /*is_send=*/true);
}

int recv(void* data, std::size_t count, DataType type, int peer, Comm comm, xccl::Stream stream) {
  const FakeUse use(comm);
  const auto& mine = use.comm;
  const auto work = [=] {
    std::string bytes;
    if (!mine->group->take(peer, mine->rank, bytes)) return kFakeAborted;
    if (bytes.size() != count * width(type)) return kFakeFailed;
    std::memcpy(data, bytes.data(), bytes.size());
    return xccl::kSuccess;
  };
  return launch_message(mine, stream, work, /*is_send=*/false);
}

int get_version(int* version) {
  *version = 20304;
  return xccl::kSuccess;
}

int get_unique_id(UniqueId* id) {
  const int number = fake_groups().next_id();
  std::memcpy(id->bytes, &number, sizeof number);
  return xccl::kSuccess;
}

void count(std::atomic<int> FakeOrders::* what) {
  if (auto* current = fake_orders()) ++(current->*what);
}

int comm_destroy(Comm comm) {
  count(&FakeOrders::destroyed);
  return fake_comm_destroy(comm);
}

int comm_revoke(Comm comm, int /*flags*/) {
  count(&FakeOrders::revoked);
  const FakeUse use(comm);
  use.comm->group->abort();
  return xccl::kSuccess;
}

int comm_abort(Comm comm) {
  count(&FakeOrders::aborted);
  const auto* current = fake_orders();
  if (batch.depth == 0 || current == nullptr || !current->groups_aborts) return fake_abort({comm});
  batch.aborts.push_back(comm);
  return xccl::kSuccess;
}

int comm_get_async_error(Comm comm, int* code) {
  const FakeUse use(comm);
  const auto* current = fake_orders();
  *code = current != nullptr && current->async_error != 0 && current->fail_rank == use.comm->rank
              ? current->async_error.load()
              : use.comm->async_error.load();
  return xccl::kSuccess;
}

const char* get_error_string(int code) { return code == kFakeFailed ? "internal error" : "remote process exited"; }
const char* get_last_error(Comm) { return "the cable is out"; }

int red_op_create(Op* op, void* scalar, DataType type, int, Comm comm) {
  count(&FakeOrders::own_ops);
  double factor = 0;
  std::array<std::byte, 8> wide{};
  const Reduction widen{.dtype = type == DataType::float64 ? DType::float64 : DType::float32,
                        .wire_dtype = dtype_of(type),
                        .op = ReduceOp::sum,
                        .scale = {}};
  host::unpack(widen, scalar, wide.data(), 1, host::Store::cached);
  if (type == DataType::float64) {
    std::memcpy(&factor, wide.data(), sizeof factor);
  } else {
    float narrow = 0;
    std::memcpy(&narrow, wide.data(), sizeof narrow);
    factor = narrow;
  }
  const FakeUse use(comm);
  auto& factors = use.comm->factors;
  *op = xccl::kFirstOwnOp + static_cast<Op>(factors.size());
  factors[*op] = factor;
  return xccl::kSuccess;
}

int red_op_destroy(Op op, Comm comm) {
  const FakeUse use(comm);
  return use.comm->factors.erase(op) == 1 ? xccl::kSuccess : kFakeFailed;
}

int comm_register(Comm comm, void* memory, std::size_t, void** handle) {
  const FakeUse use(comm);
  count(&FakeOrders::registered);
  *handle = memory;
  return xccl::kSuccess;
}

int comm_deregister(Comm comm, void*) {
  const FakeUse use(comm);
  count(&FakeOrders::deregistered);
  return xccl::kSuccess;
}

std::shared_ptr<xccl::Library> common_library(const std::string& name) {
  auto library = std::make_shared<xccl::Library>();
  library->name = name;
  library->version = "2.3.4";
  library->prefix = "fake";
  auto& call = library->call;
  call.get_version = get_version;
  call.get_unique_id = get_unique_id;
  call.comm_init_rank = fake_comm_init_rank;
  call.comm_destroy = comm_destroy;
  call.get_error_string = get_error_string;
  call.get_last_error = get_last_error;
  call.all_reduce = all_reduce;
  call.broadcast = broadcast;
  call.reduce = reduce;
  call.all_gather = all_gather;
  call.reduce_scatter = reduce_scatter;
  return library;
}

}  // namespace

bool fake_group_is_open() { return batch.depth > 0; }

FakeOrders::FakeOrders() { set_fake_orders(this); }

FakeOrders::~FakeOrders() {
  fake_groups().abort_all();
  set_fake_orders(nullptr);
}

std::shared_ptr<xccl::Library> blocking_library() {
  auto library = common_library("Blocking");
  library->call.all_to_all = all_to_all;
  library->traits = {.blocking = true,
                     .point_to_point = false,
                     .adds_16_bits = false,
                     .in_progress = 6,
                     .most_bytes = 100'000};  // small, so that tests exceed it
  return library;
}

std::shared_ptr<xccl::Library> queued_library(bool background_calls) {
  auto library = common_library("Queued");
  auto& call = library->call;
  call.comm_abort = comm_abort;
  if (background_calls) call.comm_init_rank_config = fake_comm_init_rank_config;
  if (fake_orders() != nullptr && fake_orders()->revokes) call.comm_revoke = comm_revoke;
  call.comm_get_async_error = comm_get_async_error;
  call.send = send;
  call.recv = recv;
  call.group_start = group_start;
  call.group_end = group_end;
  call.red_op_create_pre_mul_sum = red_op_create;
  call.red_op_destroy = red_op_destroy;
  library->traits.groups_aborts = fake_orders() != nullptr && fake_orders()->groups_aborts;
  library->traits.background_calls = background_calls;
  call.comm_register = comm_register;
  call.comm_deregister = comm_deregister;
  return library;
}

}  // namespace perseus::testing
