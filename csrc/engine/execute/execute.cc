#include "engine/execute/execute.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/memory/lent_memory.h"
#include "engine/execute/adasum.h"

namespace perseus {

namespace {

std::int64_t row_bytes(const Member& member) {
  std::int64_t elements = 1;
  for (std::size_t i = 1; i < member.shape.size(); ++i) elements *= member.shape[i];
  return elements * static_cast<std::int64_t>(size_of(member.dtype));
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape.front() = rows;
  return shape;
}

// The pieces of a batch that share a dtype; a rank that has joined contributes zeros.
struct Buffers {
  Reduction reduction;
  // The task and the member that a piece comes from.
  struct Origin {
    std::size_t task, member;
  };
  std::vector<Piece> in, out;
  std::vector<Origin> origins;

  void add(const BatchItem& task, std::size_t member, std::int64_t count, std::size_t bytes, const Zeros& zeros) {
    if (task.work != nullptr) {
      in.push_back({task.work->inputs[member], count});
      out.push_back({task.work->outputs[member], count});
      return;
    }
    in.push_back({zeros(bytes), count});
    out.push_back(in.back());
  }
};

// Returns the buffers of an allreduce or adasum: one for each dtype among its members.
std::vector<Buffers> buffers_of(const std::vector<BatchItem>& tasks, const Zeros& zeros) {
  std::vector<Buffers> all;
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    Buffers buffers;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      const auto& task = tasks[t];
      for (std::size_t i = 0; i < task.request->members.size(); ++i) {
        const auto& member = task.request->members[i];
        if (static_cast<int>(member.dtype) != dtype) continue;
        buffers.origins.push_back({t, i});
        buffers.add(task, i, count_of(member.shape), static_cast<std::size_t>(member.bytes()), zeros);
      }
    }
    if (buffers.in.empty()) continue;
    buffers.reduction = reduction_of(*tasks.front().request, static_cast<DType>(dtype));
    all.push_back(std::move(buffers));
  }
  return all;
}

// Allocates zeros in host memory; the system provides a page only when a result is written to it.
class HostZeros {
 public:
  void* operator()(std::size_t bytes) {
    auto& memory = kept_.emplace_back(allocate_lent(bytes, true), &free_lent);
    if (memory == nullptr) throw std::bad_alloc();
    return memory.get();
  }

 private:
  std::vector<std::unique_ptr<void, decltype(&free_lent)>> kept_;
};

// The allreduces of several batches, in their order.
class Parts final : public Observer {
 public:
  // `observer` counts batches.
  Parts(std::span<const std::vector<BatchItem>> batches, Observer& observer)
      : observer_(observer), zeros_(batches.size()) {
    for (std::size_t batch = 0; batch < batches.size(); ++batch) {
      for (auto& buffers : buffers_of(batches[batch], std::ref(zeros_[batch]))) {
        buffers_.push_back(std::move(buffers));
        batch_.push_back(batch);
      }
    }
    for (const auto& buffers : buffers_) all_.push_back({buffers.reduction, buffers.in, buffers.out});
  }

  std::span<const Allreduce> all() const { return all_; }
  void turns_to(std::size_t which) override { observer_.turns_to(batch_[which]); }
  void done(std::size_t which) override {
    const auto batch = batch_[which];
    if (which + 1 < batch_.size() && batch_[which + 1] == batch) return;
    zeros_[batch] = {};
    observer_.done(batch);
  }

 private:
  Observer& observer_;
  std::vector<HostZeros> zeros_;  // by batch
  std::vector<Buffers> buffers_;
  std::vector<std::size_t> batch_;  // of each of buffers_
  std::vector<Allreduce> all_;
};

// Handles a result that is not finite, which all ranks find alike: fails the work or warns, with the rank at fault.
Status report_not_finite(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
                         const Buffers& buffers, const std::optional<NotFinite>& mine, const NotFinite& result,
                         NanCheck& check) {
  NotFiniteOrigin not_finite;
  if (auto status = locate_not_finite(transport, mine, result, not_finite); !status.ok()) return status;
  const auto& origin = buffers.origins[static_cast<std::size_t>(not_finite.found.piece)];
  const auto& task = tasks[origin.task];
  auto text = task.request->label();
  if (task.request->members.size() > 1) text += ", tensor " + std::to_string(origin.member) + " of the group";
  const auto where = "element " + std::to_string(not_finite.found.element);
  text += not_finite.rank < 0
              ? ": " + where + " of the result is a NaN or an infinity, though all ranks' values are finite"
              : ": " + where + " of rank " + std::to_string(world_ranks[static_cast<std::size_t>(not_finite.rank)]) +
                    " is a NaN or an infinity";
  if (check == NanCheck::fail) {
    if (task.work != nullptr) task.work->failure = {ErrorKind::invalid_argument, text};
    return {};
  }
  check = NanCheck::off;
  if (transport.rank() == 0) log(LogLevel::warning, text + "; PERSEUS_ALLREDUCE_NANCHECK warns only once");
  return {};
}

Status broadcast(Transport& transport, const std::vector<BatchItem>& tasks) {
  const int root = tasks.front().request->root;
  std::vector<Piece> pieces;
  for (const auto& task : tasks) {
    for (std::size_t i = 0; i < task.work->outputs.size(); ++i) {
      auto* out = task.work->outputs[i];
      const auto* in = task.work->inputs[i];
      const auto bytes = task.request->members[i].bytes();
      if (transport.rank() == root && in != out && bytes > 0) std::memcpy(out, in, static_cast<std::size_t>(bytes));
      pieces.push_back({out, bytes});
    }
  }
  return transport.broadcast(pieces, root);
}

// A rank without memory for its result would fail alone, and the others would wait in the middle of the collective. If
// all ranks' results together have this size or more, the ranks first agree that all have memory.
constexpr std::int64_t kLargeBytes = std::int64_t{64} << 20;

std::string text_of(const std::vector<int>& world_ranks, std::size_t rank) {
  return "rank " + std::to_string(world_ranks[rank]);
}

// One allgather, alltoall or reduce-scatter.
struct VariableSizeCollective {
  Transport& host;  // exchanges sizes
  Transport& transport;
  const std::vector<int>& world_ranks;
  WorkItem& work;
  const MakeResult& make;

  // Allocates the results, unless the caller has: one for each member, with `rows[i]` rows. `bytes` is the sum over all
  // ranks, the same on each. If a rank has no memory, work.failure says so.
  Status allocate(const std::vector<std::int64_t>& rows, std::int64_t bytes) {
    std::int64_t lacking = 0;
    try {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto& member = work.request.members[i];
        lacking = std::max<std::int64_t>(1, rows[i] * row_bytes(member));
        if (writes_directly()) {
          require_room(i, rows[i] * row_bytes(member));
        } else {
          work.completion.results.push_back(make(member.dtype, with_rows(member.shape, rows[i])));
        }
      }
      lacking = 0;
    } catch (const Error&) {
      if (bytes < kLargeBytes) throw;
    }
    if (bytes < kLargeBytes) return {};
    LentVector<std::int64_t> all(world_ranks.size());
    const std::vector<std::int64_t> one_each(all.size(), sizeof lacking);
    if (auto status = host.allgather(&lacking, all.data(), one_each); !status.ok()) return status;
    const auto found = std::find_if(all.begin(), all.end(), [](std::int64_t other) { return other > 0; });
    if (found == all.end()) return {};
    work.completion.results.clear();
    const auto rank = text_of(world_ranks, static_cast<std::size_t>(found - all.begin()));
    work.failure = {ErrorKind::unavailable, rank + " has no memory for a result of " + std::to_string(*found) +
                                                " bytes; nothing was communicated"};
    return {};
  }

  // Checks on all ranks that each rank receives the counts it expects. If one does not, work.failure has the same text
  // everywhere and names the first such pair of ranks.
  Status compare(const std::vector<std::int64_t>& coming) {
    struct Finding {
      std::int64_t from = -1, comes = 0, expected = 0;
    };
    Finding mine;
    for (std::size_t rank = 0; rank < coming.size() && mine.from < 0; ++rank) {
      if (coming[rank] == work.expected[rank]) continue;
      mine = {static_cast<std::int64_t>(rank), coming[rank], work.expected[rank]};
    }
    LentVector<Finding> all(world_ranks.size());
    const std::vector<std::int64_t> one_each(all.size(), sizeof mine);
    if (auto status = host.allgather(&mine, all.data(), one_each); !status.ok()) return status;
    const auto found = std::find_if(all.begin(), all.end(), [](const Finding& other) { return other.from >= 0; });
    if (found == all.end()) return {};
    const std::string unit = work.request.members.front().shape.size() == 1 ? " elements" : " rows";
    work.failure = {ErrorKind::disagreement,
                    work.request.label() + ": " + text_of(world_ranks, static_cast<std::size_t>(found->from)) +
                        " sends " + std::to_string(found->comes) + unit + " to " +
                        text_of(world_ranks, static_cast<std::size_t>(found - all.begin())) + ", which expects " +
                        std::to_string(found->expected) + "; nothing was communicated"};
    return {};
  }

  // Returns true if all ranks continue with the transfer.
  bool allocated() const { return work.failure.ok(); }
  void* result(std::size_t member) const {
    return writes_directly() ? work.outputs[member] : work.completion.results[member]->data();
  }

  // Returns true if results go to the caller's memory.
  bool writes_directly() const { return !work.output_bytes.empty(); }
  void require_room(std::size_t member, std::int64_t bytes) const {
    if (work.output_bytes[member] == bytes) return;
    throw Error(ErrorKind::invalid_argument, work.request.label() + ": the result has " + std::to_string(bytes) +
                                                 " bytes, and the output has room for " +
                                                 std::to_string(work.output_bytes[member]));
  }
};

Status allgather(VariableSizeCollective to) {
  auto& [host, transport, world_ranks, work, make] = to;
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto members = work.inputs.size();
  LentVector<std::int64_t> mine;
  for (const auto& member : work.request.members) mine.push_back(member.shape.front());
  LentVector<std::int64_t> all(ranks * members);
  const std::vector<std::int64_t> equal(ranks, static_cast<std::int64_t>(members * sizeof(std::int64_t)));
  if (auto status = host.allgather(mine.data(), all.data(), equal); !status.ok()) return status;
  std::vector<std::int64_t> rows(members, 0);
  std::vector<std::vector<std::int64_t>> bytes(members, std::vector<std::int64_t>(ranks));
  std::int64_t total = 0;
  for (std::size_t i = 0; i < members; ++i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows[i] += all[rank * members + i];
      bytes[i][rank] = all[rank * members + i] * row_bytes(work.request.members[i]);
      total += bytes[i][rank];
    }
  }
  if (auto status = to.allocate(rows, total); !status.ok() || !to.allocated()) return status;
  for (std::size_t i = 0; i < members; ++i) {
    if (auto status = transport.allgather(work.inputs[i], to.result(i), bytes[i]); !status.ok()) return status;
  }
  return {};
}

Status alltoall(VariableSizeCollective to) {
  auto& [host, transport, world_ranks, work, make] = to;
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto& member = work.request.members.front();
  // The message of each rank to each other rank: the rows for it, and the number of rows that it sends in all.
  struct Note {
    std::int64_t rows, sent;
  };
  const auto sent = sum(work.splits);
  LentVector<Note> mine, theirs(ranks);
  for (const auto rows : work.splits) mine.push_back({rows, sent});
  const std::vector<std::int64_t> one_each(ranks, sizeof(Note));
  if (auto status = host.alltoall(mine.data(), one_each, theirs.data(), one_each); !status.ok()) return status;
  std::vector<std::int64_t> received, send_bytes, recv_bytes;
  std::int64_t rows = 0, all = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    received.push_back(theirs[rank].rows);
    send_bytes.push_back(work.splits[rank] * row_bytes(member));
    recv_bytes.push_back(theirs[rank].rows * row_bytes(member));
    rows += theirs[rank].rows;
    all += theirs[rank].sent;
  }
  if (work.request.checked) {
    if (auto status = to.compare(received); !status.ok() || !work.failure.ok()) return status;
  }
  if (auto status = to.allocate({rows}, all * row_bytes(member)); !status.ok() || !to.allocated()) return status;
  work.completion.received_splits = std::move(received);
  return transport.alltoall(work.inputs.front(), send_bytes, to.result(0), recv_bytes);
}

Status reduce_scatter(VariableSizeCollective to) {
  auto& [host, transport, world_ranks, work, make] = to;
  const auto ranks = static_cast<std::int64_t>(transport.size());
  // The remainder goes to the first ranks, a row each.
  const auto rows_of = [&](const Member& member, std::int64_t rank) {
    return member.shape.front() / ranks + (rank < member.shape.front() % ranks ? 1 : 0);
  };
  std::vector<std::int64_t> rows;
  rows.reserve(work.request.members.size());
  for (const auto& member : work.request.members) rows.push_back(rows_of(member, transport.rank()));
  if (auto status = to.allocate(rows, work.request.bytes()); !status.ok() || !to.allocated()) return status;
  for (std::size_t i = 0; i < work.inputs.size(); ++i) {
    const auto& member = work.request.members[i];
    const auto row_elements = row_bytes(member) / static_cast<std::int64_t>(size_of(member.dtype));
    std::vector<std::int64_t> counts;
    counts.reserve(static_cast<std::size_t>(ranks));
    for (std::int64_t rank = 0; rank < ranks; ++rank) counts.push_back(rows_of(member, rank) * row_elements);
    Reduction reduction{member.dtype, member.dtype, work.request.op, work.request.scale};
    auto status = transport.reduce_scatter(reduction, work.inputs[i], to.result(i), counts);
    if (!status.ok()) return status;
  }
  return {};
}

Status run(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
           NanCheck& check) {
  switch (tasks.front().request->verb) {
    case Verb::allreduce:
    case Verb::adasum: {
      HostZeros zeros;
      return allreduce(transport, world_ranks, tasks, std::ref(zeros), check);
    }
    case Verb::broadcast: return broadcast(transport, tasks);
    case Verb::allgather:
    case Verb::alltoall:
    case Verb::reduce_scatter:
      return gather(transport, transport, world_ranks, *tasks.front().work,
                    [](DType dtype, Shape shape) { return std::make_shared<Result>(dtype, std::move(shape)); });
    case Verb::barrier:  // a barrier is complete once all ranks have submitted it
    case Verb::add_process_set:
    case Verb::remove_process_set:  // the session executes it
      break;
  }
  return {};
}

template <class Call>
Status as_status(const Transport& transport, const std::vector<int>& world_ranks, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    return Status::from(error);
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable, "rank " + std::to_string(world_ranks[static_cast<std::size_t>(transport.rank())]) +
                                        " has not enough memory for this collective"};
  } catch (const std::exception& error) {
    return {ErrorKind::transport, error.what()};
  }
}

}  // namespace

Reduction reduction_of(const Request& request, DType dtype) {
  const bool compressible = dtype == DType::float32 || dtype == DType::float64;
  const auto wire = request.wire_dtype < 0 || !compressible ? dtype : static_cast<DType>(request.wire_dtype);
  return {dtype, wire, request.op, request.scale};
}

Status gather(Transport& host, Transport& transport, const std::vector<int>& world_ranks, WorkItem& work,
              const MakeResult& make) {
  const VariableSizeCollective to{host, transport, world_ranks, work, make};
  if (work.request.verb == Verb::allgather) return allgather(to);
  return work.request.verb == Verb::alltoall ? alltoall(to) : reduce_scatter(to);
}

Status allreduce(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
                 const Zeros& zeros, NanCheck& check) {
  const auto& request = *tasks.front().request;
  for (const auto& buffers : buffers_of(tasks, zeros)) {
    const auto& reduction = buffers.reduction;
    const bool checked = check != NanCheck::off && request.on_host;
    const auto mine = checked ? find_not_finite(buffers.in, reduction.dtype) : std::nullopt;
    auto status = request.verb == Verb::adasum ? adasum(transport, reduction, buffers.in, buffers.out)
                                               : transport.allreduce(reduction, buffers.in, buffers.out);
    if (!status.ok()) return status;
    const auto result = checked ? find_not_finite(buffers.out, reduction.dtype) : std::nullopt;
    if (!result) continue;
    if (status = report_not_finite(transport, world_ranks, tasks, buffers, mine, *result, check); !status.ok())
      return status;
  }
  return {};
}

bool may_overlap(const Request& request) {
  return request.verb == Verb::allreduce && request.on_host && !request.members.empty();
}

Status execute(Transport& transport, const std::vector<int>& world_ranks, const std::vector<BatchItem>& tasks,
               NanCheck& check) {
  return as_status(transport, world_ranks, [&] { return run(transport, world_ranks, tasks, check); });
}

Status execute_each(Transport& transport, const std::vector<int>& world_ranks,
                    std::span<const std::vector<BatchItem>> batches, Observer& observer) {
  return as_status(transport, world_ranks, [&] {
    Parts parts(batches, observer);
    return transport.allreduce_each(parts.all(), parts);
  });
}

}  // namespace perseus
