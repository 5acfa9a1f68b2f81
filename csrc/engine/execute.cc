#include "engine/execute.h"

#include <cstring>
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

Status allgather(Transport& transport, Work& work) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto members = work.inputs.size();
  std::vector<std::int64_t> mine;
  for (const auto& member : work.request.members) mine.push_back(member.shape.front());
  std::vector<std::int64_t> all(ranks * members);
  const std::vector<std::int64_t> equal(ranks, static_cast<std::int64_t>(members * sizeof(std::int64_t)));
  if (auto status = transport.allgather(mine.data(), all.data(), equal); !status.ok()) return status;
  for (std::size_t i = 0; i < members; ++i) {
    const auto& member = work.request.members[i];
    std::vector<std::int64_t> bytes(ranks);
    std::int64_t rows = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      rows += all[rank * members + i];
      bytes[rank] = all[rank * members + i] * row_bytes(member);
    }
    auto result = std::make_shared<Result>(member.dtype, with_rows(member.shape, rows));
    if (auto status = transport.allgather(work.inputs[i], result->data(), bytes); !status.ok()) return status;
    work.completion->results.push_back(std::move(result));
  }
  return {};
}

Status alltoall(Transport& transport, Work& work) {
  const auto ranks = static_cast<std::size_t>(transport.size());
  const auto& member = work.request.members.front();
  const std::vector<std::int64_t> one_each(ranks, sizeof(std::int64_t));
  std::vector<std::int64_t> received(ranks);
  if (auto status = transport.alltoall(work.splits.data(), one_each, received.data(), one_each); !status.ok()) {
    return status;
  }
  std::vector<std::int64_t> send_bytes(ranks), recv_bytes(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    send_bytes[rank] = work.splits[rank] * row_bytes(member);
    recv_bytes[rank] = received[rank] * row_bytes(member);
  }
  const auto rows = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  auto result = std::make_shared<Result>(member.dtype, with_rows(member.shape, rows));
  auto status = transport.alltoall(work.inputs.front(), send_bytes, result->data(), recv_bytes);
  work.completion->results.push_back(std::move(result));
  work.completion->received_splits = std::move(received);
  return status;
}

Status reduce_scatter(Transport& transport, Work& work) {
  const auto ranks = static_cast<std::int64_t>(transport.size());
  for (std::size_t i = 0; i < work.inputs.size(); ++i) {
    const auto& member = work.request.members[i];
    const auto rows = member.shape.front();
    const auto row_elements = row_bytes(member) / static_cast<std::int64_t>(size_of(member.dtype));
    // The remainder goes to the first ranks, a row each.
    const auto rows_of = [&](std::int64_t rank) { return rows / ranks + (rank < rows % ranks ? 1 : 0); };
    std::vector<std::int64_t> counts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) counts.push_back(rows_of(rank) * row_elements);
    auto result = std::make_shared<Result>(member.dtype, with_rows(member.shape, rows_of(transport.rank())));
    Reduction reduction{member.dtype, member.dtype, work.request.op, work.request.scale};
    auto status = transport.reduce_scatter(reduction, work.inputs[i], result->data(), counts);
    if (!status.ok()) return status;
    work.completion->results.push_back(std::move(result));
  }
  return {};
}

Status run(Transport& transport, const std::vector<Task>& tasks) {
  switch (tasks.front().request->verb) {
    case Verb::allreduce:
    case Verb::adasum: return allreduce(transport, tasks);
    case Verb::broadcast: return broadcast(transport, tasks);
    case Verb::allgather: return allgather(transport, *tasks.front().work);
    case Verb::alltoall: return alltoall(transport, *tasks.front().work);
    case Verb::reduce_scatter: return reduce_scatter(transport, *tasks.front().work);
    case Verb::barrier:  // that all ranks asked for it is the barrier
    case Verb::add_process_set:
    case Verb::remove_process_set:  // carried out by the session
      break;
  }
  return {};
}

}  // namespace

Status execute(Transport& transport, const std::vector<Task>& tasks) {
  try {
    return run(transport, tasks);
  } catch (const Error& error) {
    return Status::from(error);
  } catch (const std::exception& error) {
    return {ErrorKind::transport, error.what()};
  }
}

}  // namespace perseus
