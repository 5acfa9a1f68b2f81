#include "engine/execute.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "engine/adasum.h"

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

// The pieces of a batch that share a dtype, and zeros where this rank has joined.
struct Buffers {
  std::vector<Piece> in, out;
  std::vector<std::vector<std::byte>> zeros;

  void add(const Task& task, std::size_t member, std::int64_t count, std::size_t bytes) {
    if (task.work != nullptr) {
      in.push_back({task.work->inputs[member], count});
      out.push_back({task.work->outputs[member], count});
      return;
    }
    zeros.emplace_back(bytes);
    in.push_back({zeros.back().data(), count});
    out.push_back(in.back());
  }
};

Status allreduce(Transport& transport, const std::vector<Task>& tasks) {
  for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
    Buffers buffers;
    for (const auto& task : tasks) {
      for (std::size_t i = 0; i < task.request->members.size(); ++i) {
        const auto& member = task.request->members[i];
        if (static_cast<int>(member.dtype) != dtype) continue;
        buffers.add(task, i, count_of(member.shape), static_cast<std::size_t>(member.bytes()));
      }
    }
    if (buffers.in.empty()) continue;
    const auto& request = *tasks.front().request;
    Reduction reduction;
    reduction.dtype = static_cast<DType>(dtype);
    const bool compressible = reduction.dtype == DType::float32 || reduction.dtype == DType::float64;
    reduction.wire = request.wire < 0 || !compressible ? reduction.dtype : static_cast<DType>(request.wire);
    reduction.op = request.op;
    reduction.scale = request.scale;
    auto status = request.verb == Verb::adasum ? adasum(transport, reduction, buffers.in, buffers.out)
                                               : transport.allreduce(reduction, buffers.in, buffers.out);
    if (!status.ok()) return status;
  }
  return {};
}

Status broadcast(Transport& transport, const std::vector<Task>& tasks) {
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

// A rank without memory for its result would break off alone, and leave the others waiting in the middle of a
// collective. From so many bytes on, of all ranks together, they therefore ask one another first.
constexpr std::int64_t kLargeBytes = std::int64_t{64} << 20;

// One gather, alltoall or reduce-scatter.
struct Gathering {
  Transport& transport;
  const std::vector<int>& world_ranks;
  Work& work;

  // Makes the results, one for each member, of so many rows. `bytes`: of all ranks, the same on each. Where a rank has
  // no memory, work.failure says so.
  Status allocate(const std::vector<std::int64_t>& rows, std::int64_t bytes) {
    std::int64_t lacking = 0;
    try {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto& member = work.request.members[i];
        lacking = std::max<std::int64_t>(1, rows[i] * row_bytes(member));
        work.completion.results.push_back(std::make_shared<Result>(member.dtype, with_rows(member.shape, rows[i])));
      }
      lacking = 0;
    } catch (const Error&) {
      if (bytes < kLargeBytes) throw;
    }
    if (bytes < kLargeBytes) return {};
    std::vector<std::int64_t> all(world_ranks.size());
    const std::vector<std::int64_t> one_each(all.size(), sizeof lacking);
    if (auto status = transport.allgather(&lacking, all.data(), one_each); !status.ok()) return status;
    const auto found = std::find_if(all.begin(), all.end(), [](std::int64_t other) { return other > 0; });
    if (found == all.end()) return {};
    work.completion.results.clear();
    const auto rank = world_ranks[static_cast<std::size_t>(found - all.begin())];
    work.failure = {ErrorKind::unavailable, "rank " + std::to_string(rank) + " has no memory for a result of " +
                                                std::to_string(*found) + " bytes; nothing was communicated"};
    return {};
  }

  // Whether all ranks go on.
  bool allocated() const { return work.failure.ok(); }
  void* result(std::size_t member) const { return work.completion.results[member]->data(); }
};

Status allgather(Gathering to) {
  auto& [transport, world_ranks, work] = to;
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto members = work.inputs.size();
  std::vector<std::int64_t> mine;
  for (const auto& member : work.request.members) mine.push_back(member.shape.front());
  std::vector<std::int64_t> all(ranks * members);
  const std::vector<std::int64_t> equal(ranks, static_cast<std::int64_t>(members * sizeof(std::int64_t)));
  if (auto status = transport.allgather(mine.data(), all.data(), equal); !status.ok()) return status;
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

Status alltoall(Gathering to) {
  auto& [transport, world_ranks, work] = to;
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto& member = work.request.members.front();
  // What each rank gets from another: its rows, and how many the other sends in all.
  struct Note {
    std::int64_t rows, sent;
  };
  const auto sent = std::accumulate(work.splits.begin(), work.splits.end(), std::int64_t{0});
  std::vector<Note> mine, theirs(ranks);
  for (const auto rows : work.splits) mine.push_back({rows, sent});
  const std::vector<std::int64_t> one_each(ranks, sizeof(Note));
  if (auto status = transport.alltoall(mine.data(), one_each, theirs.data(), one_each); !status.ok()) return status;
  std::vector<std::int64_t> received, send_bytes, recv_bytes;
  std::int64_t rows = 0, all = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    received.push_back(theirs[rank].rows);
    send_bytes.push_back(work.splits[rank] * row_bytes(member));
    recv_bytes.push_back(theirs[rank].rows * row_bytes(member));
    rows += theirs[rank].rows;
    all += theirs[rank].sent;
  }
  if (auto status = to.allocate({rows}, all * row_bytes(member)); !status.ok() || !to.allocated()) return status;
  work.completion.received_splits = std::move(received);
  return transport.alltoall(work.inputs.front(), send_bytes, to.result(0), recv_bytes);
}

Status reduce_scatter(Gathering to) {
  auto& [transport, world_ranks, work] = to;
  const auto ranks = static_cast<std::int64_t>(transport.size());
  // The remainder goes to the first ranks, a row each.
  const auto rows_of = [&](const Member& member, std::int64_t rank) {
    return member.shape.front() / ranks + (rank < member.shape.front() % ranks ? 1 : 0);
  };
  std::vector<std::int64_t> rows;
  for (const auto& member : work.request.members) rows.push_back(rows_of(member, transport.rank()));
  if (auto status = to.allocate(rows, work.request.bytes()); !status.ok() || !to.allocated()) return status;
  for (std::size_t i = 0; i < work.inputs.size(); ++i) {
    const auto& member = work.request.members[i];
    const auto row_elements = row_bytes(member) / static_cast<std::int64_t>(size_of(member.dtype));
    std::vector<std::int64_t> counts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) counts.push_back(rows_of(member, rank) * row_elements);
    Reduction reduction{member.dtype, member.dtype, work.request.op, work.request.scale};
    auto status = transport.reduce_scatter(reduction, work.inputs[i], to.result(i), counts);
    if (!status.ok()) return status;
  }
  return {};
}

Status run(Transport& transport, const std::vector<int>& world_ranks, const std::vector<Task>& tasks) {
  switch (tasks.front().request->verb) {
    case Verb::allreduce:
    case Verb::adasum: return allreduce(transport, tasks);
    case Verb::broadcast: return broadcast(transport, tasks);
    case Verb::allgather: return allgather({transport, world_ranks, *tasks.front().work});
    case Verb::alltoall: return alltoall({transport, world_ranks, *tasks.front().work});
    case Verb::reduce_scatter: return reduce_scatter({transport, world_ranks, *tasks.front().work});
    case Verb::barrier:  // that all ranks asked for it is the barrier
    case Verb::add_process_set:
    case Verb::remove_process_set:  // carried out by the session
      break;
  }
  return {};
}

}  // namespace

Status execute(Transport& transport, const std::vector<int>& world_ranks, const std::vector<Task>& tasks) {
  try {
    return run(transport, world_ranks, tasks);
  } catch (const Error& error) {
    return Status::from(error);
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable, "rank " + std::to_string(world_ranks[static_cast<std::size_t>(transport.rank())]) +
                                        " has not enough memory for this collective"};
  } catch (const std::exception& error) {
    return {ErrorKind::transport, error.what()};
  }
}

}  // namespace perseus
