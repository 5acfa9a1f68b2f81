#include "engine/execute/device_streams.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/log.h"
#include "engine/execute/on_device.h"
#include "engine/execute/transport_allgather.h"

namespace perseus {

namespace {

std::size_t aligned(std::int64_t bytes) { return (static_cast<std::size_t>(bytes) + 63) / 64 * 64; }

// Returns true for verbs that write into the caller's memory; the others allocate their results.
// The pause between two looks at a device whose work is about to end.
constexpr std::chrono::microseconds kPause{200};

std::string label_of(const std::vector<BatchItem>& tasks) {
  auto label = tasks.front().request->label();
  if (tasks.size() > 1) label += " and " + std::to_string(tasks.size() - 1) + " more of its batch";
  return label;
}

OnDevice& place_of(const BatchItem& task) { return *task.work->completion.on_device; }

}  // namespace

DeviceStreams::DeviceStreams(std::shared_ptr<Device> device, Transport& host, const std::vector<int>& world_ranks,
                             const DeviceTransports& transports, int streams, std::chrono::milliseconds limit,
                             Registry& registry)
    : device_(std::move(device)),
      host_(host),
      registry_(registry),
      world_ranks_(world_ranks),
      limit_(limit),
      copies_(device_->make_stream()) {
  connect(transports, streams);
}

// Waits for queued work, which may use the memory here.
DeviceStreams::~DeviceStreams() {
  registry_.end();
  try {
    for (const auto& link : links_) await_end(link);
    device_->synchronize(*device_->record(*copies_));
  } catch (const Error& error) {
    log(LogLevel::debug, error.what());
  }
}

// Blocks until queued work is done. The transport aborts work that waits for a lost rank; without peers, no work does.
void DeviceStreams::await_end(const Link& link) {
  const bool has_peers = link.last && link.transport->size() > 1;
  while (has_peers && !device_->is_done(*link.last) && link.transport->check().ok()) {
    std::this_thread::sleep_for(kPause);
  }
  device_->synchronize(*device_->record(*link.stream));
}

void DeviceStreams::connect(const DeviceTransports& transports, int streams) {
  std::string why = "this build has none";
  const auto exchange = [this](std::string_view mine) { return allgather_over(host_, mine); };
  for (int i = 0; i < streams && transports; ++i) {
    auto stream = device_->make_stream();
    auto transport = transports(device_, stream, exchange, why);
    if (!transport) break;
    links_.push_back({std::move(stream), std::move(transport), nullptr, {}});
  }
  if (!links_.empty()) {
    if (host_.rank() == 0) {
      log(LogLevel::info, device_->description() + ": " + std::string(links_.front().transport->name()) + " on " +
                              std::to_string(links_.size()) + (links_.size() == 1 ? " stream" : " streams"));
    }
    return;
  }
  if (host_.rank() == 0 && host_.size() > 1) {
    log(LogLevel::warning,
        device_->description() + ": tensors are copied through host memory, which is slower: " + why);
  }
}

Status DeviceStreams::execute(const std::vector<BatchItem>& tasks) {
  try {
    return run(tasks);
  } catch (const Error& error) {
    return Status::from(error);
  } catch (const std::bad_alloc&) {
    return {ErrorKind::unavailable, "not enough memory for this collective"};
  }
}

Status DeviceStreams::run(const std::vector<BatchItem>& tasks) {
  const auto& request = *tasks.front().request;
  if (request.verb == Verb::barrier) return perseus::execute(host_, world_ranks_, tasks, unchecked_);
  if (!stays_on_device(request)) return stage(tasks);
  auto& link = links_[next_];
  next_ = (next_ + 1) % links_.size();
  return queue(link, tasks);
}

std::string_view DeviceStreams::name(const Request& request) const {
  return stays_on_device(request) ? links_.front().transport->name() : host_.name();
}

Status DeviceStreams::check() {
  for (auto& link : links_) {
    if (auto status = link.transport->check(); !status.ok()) return status;
    auto& queued = link.queued;
    while (!queued.empty() && device_->is_done(*queued.front().done)) queued.pop_front();
    if (queued.empty() || std::chrono::steady_clock::now() - queued.front().since < limit_) continue;
    return {ErrorKind::timed_out,
            queued.front().label + " of ranks " + to_string(Shape(world_ranks_.begin(), world_ranks_.end())) + ": " +
                device_->description() + " is not done with it " + std::to_string(limit_.count() / 1000) +
                " s after it was queued; check whether a device hangs or is much slower than the others, or raise the "
                "timeout of the group (PERSEUS_STALL_SHUTDOWN_TIME_SECONDS for the whole job)"};
  }
  return {};
}

bool DeviceStreams::busy() const {
  try {
    const auto is_under_way = [&](const auto& last) { return last && !device_->is_done(*last); };
    return is_under_way(last_) ||
           std::any_of(links_.begin(), links_.end(), [&](const Link& link) { return is_under_way(link.last); });
  } catch (const Error&) {
    return false;
  }
}

void DeviceStreams::abort(const Status& why) {
  for (const auto& link : links_) link.transport->abort(why);
}

// Decides by the request alone, so that all ranks decide alike.
bool DeviceStreams::stays_on_device(const Request& request) const {
  if (links_.empty() || results_of(request.verb) == Results::none || request.verb == Verb::adasum) return false;
  if (!reduces(request.verb)) return true;
  return std::all_of(request.members.begin(), request.members.end(), [&](const Member& member) {
    return links_.front().transport->carries(reduction_of(request, member.dtype));
  });
}

Status DeviceStreams::queue(Link& link, const std::vector<BatchItem>& tasks) {
  registry_.enroll_new([this](void* memory, std::size_t bytes) {
    std::vector<std::shared_ptr<void>> held;
    held.reserve(links_.size());
    for (const auto& each : links_) held.push_back(each.transport->register_memory(memory, bytes));
    return held;
  });
  wait_for_tensors(*link.stream, tasks);
  auto status = Status();
  switch (tasks.front().request->verb) {
    case Verb::allreduce: {
      const auto zeros = [this, &link](std::size_t bytes) { return this->zeros(link, bytes); };
      status = allreduce(*link.transport, world_ranks_, tasks, zeros, unchecked_);
      break;
    }
    case Verb::broadcast: status = broadcast(link, tasks); break;
    default: status = gather(link, *tasks.front().work);
  }
  mark_done(*link.stream, tasks);
  link.last = last_;
  if (limit_.count() > 0) link.queued.push_back({label_of(tasks), last_, std::chrono::steady_clock::now()});
  zeros_.clear();
  return status;
}

Status DeviceStreams::broadcast(Link& link, const std::vector<BatchItem>& tasks) {
  const int root = tasks.front().request->root;
  std::vector<Piece> pieces;
  for (const auto& task : tasks) {
    for (std::size_t i = 0; i < task.work->outputs.size(); ++i) {
      auto* out = task.work->outputs[i];
      const auto bytes = task.request->members[i].bytes();
      if (host_.rank() == root && out != task.work->inputs[i]) {
        device_->copy(*link.stream, out, task.work->inputs[i], static_cast<std::size_t>(bytes));
      }
      pieces.push_back({out, bytes});
    }
  }
  return link.transport->broadcast(pieces, root);
}

// The ranks exchange their sizes in host memory, which does not wait for queued work.
Status DeviceStreams::gather(Link& link, WorkItem& work) {
  return perseus::gather(host_, *link.transport, world_ranks_, work, [&](DType dtype, Shape shape) {
    const auto bytes = static_cast<std::size_t>(count_of(shape)) * size_of(dtype);
    const auto memory = work.completion.on_device->results.emplace_back(device_->allocate_on(link.stream, bytes));
    return std::make_shared<Result>(dtype, std::move(shape), std::shared_ptr<void>(memory, memory->data()),
                                    device_->number());
  });
}

// Executes the batch by the host's transport, on copies in pinned host memory.
Status DeviceStreams::stage(const std::vector<BatchItem>& tasks) {
  std::vector<std::shared_ptr<WorkItem>> staged;
  wait_for_tensors(*copies_, tasks);
  bring(tasks, staged);
  std::vector<BatchItem> on_host;
  on_host.reserve(tasks.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) on_host.push_back({tasks[i].request, staged[i].get()});
  auto status = perseus::execute(host_, world_ranks_, on_host, unchecked_);
  if (status.ok()) {
    take_back(tasks, staged);
  } else if (host_.has_lent_memory()) {
    keep_pinned();
  }
  mark_done(*copies_, tasks);
  return status;
}

// Copies each work's tensors into pinned memory, side by side; returns once they are there.
void DeviceStreams::bring(const std::vector<BatchItem>& tasks, std::vector<std::shared_ptr<WorkItem>>& staged) {
  std::size_t bytes = 0;
  for (const auto& task : tasks) {
    if (task.work == nullptr) continue;
    for (const auto& member : task.work->request.members) bytes += aligned(member.bytes());
  }
  auto* at = pinned(bytes);
  for (const auto& task : tasks) {
    auto& mine = staged.emplace_back();
    if (task.work == nullptr) continue;
    mine = std::make_shared<WorkItem>();
    mine->request = task.work->request;
    mine->splits = task.work->splits;
    mine->expected = task.work->expected;
    for (std::size_t i = 0; i < task.work->inputs.size(); ++i) {
      const auto size = mine->request.members[i].bytes();
      device_->copy(*copies_, at, task.work->inputs[i], static_cast<std::size_t>(size));
      mine->inputs.push_back(at);
      at += aligned(size);
    }
    if (results_of(mine->request.verb) == Results::same_shapes) mine->outputs = mine->inputs;
  }
  device_->synchronize(*device_->record(*copies_));
}

void DeviceStreams::take_back(const std::vector<BatchItem>& tasks,
                              const std::vector<std::shared_ptr<WorkItem>>& staged) {
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].work == nullptr) continue;
    auto& work = *tasks[t].work;
    auto& mine = *staged[t];
    work.failure = mine.failure;
    work.completion.results = std::move(mine.completion.results);
    work.completion.received_splits = std::move(mine.completion.received_splits);
    for (std::size_t i = 0; i < mine.outputs.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(mine.request.members[i].bytes());
      device_->copy(*copies_, work.outputs[i], mine.outputs[i], bytes);
    }
  }
}

// Returns pinned memory of at least `bytes`. Copies from it may still be in progress; the next copies are queued behind
// them on the same stream.
std::byte* DeviceStreams::pinned(std::size_t bytes) {
  if (bytes > pinned_bytes_) {
    device_->synchronize(*device_->record(*copies_));
    pinned_.reset();
    pinned_bytes_ = 0;
    pinned_ = device_->allocate_pinned(bytes);
    pinned_bytes_ = bytes;
  }
  return static_cast<std::byte*>(pinned_.get());
}

// Keeps the pinned memory for the life of the process, because a peer may still use it.
void DeviceStreams::keep_pinned() {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::scoped_lock lock(mutex);
  kept->push_back(std::move(pinned_));
  pinned_bytes_ = 0;
}

void* DeviceStreams::zeros(const Link& link, std::size_t bytes) {
  auto* memory = zeros_.emplace_back(device_->allocate_on(link.stream, bytes))->data();
  device_->zero(*link.stream, memory, bytes);
  return memory;
}

void DeviceStreams::wait_for_tensors(Stream stream, const std::vector<BatchItem>& tasks) {
  for (const auto& task : tasks) {
    if (task.work != nullptr) device_->wait(stream, *place_of(task).ready);
  }
}

void DeviceStreams::mark_done(Stream stream, const std::vector<BatchItem>& tasks) {
  const auto done = last_ = device_->record(stream);
  for (const auto& task : tasks) {
    if (task.work != nullptr) place_of(task).done = done;
  }
}

}  // namespace perseus
