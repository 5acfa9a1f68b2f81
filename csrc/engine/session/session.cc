#include "engine/session/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <numeric>
#include <set>
#include <utility>

#include "control/agreement.h"
#include "device/device.h"
#include "engine/execute/on_device.h"
#include "engine/execute/transport_allgather.h"
#include "engine/session/arguments.h"
#include "engine/session/common_settings.h"
#include "engine/session/session_options.h"
#include "transport/all_or_none.h"

namespace perseus {

namespace {

// Ranks of other hosts that have not connected for the heartbeat within this time are left out of it.
constexpr std::chrono::milliseconds kRendezvous{10'000};

// The time that other ranks have to answer when this rank leaves: all sets together, or a set that is removed.
constexpr std::chrono::milliseconds kGrace{1000};
// The time that work has to finish which was submitted before its set is removed.
constexpr std::chrono::milliseconds kRemovalGrace{5000};

std::chrono::milliseconds time_left(ProcessSetEngine::Clock::time_point until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - ProcessSetEngine::Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

std::string text_of(const std::vector<int>& ranks) { return to_string(Shape(ranks.begin(), ranks.end())); }

}  // namespace

Session::Session(Config config, const BootstrapOptions& bootstrap)
    : config_(std::move(config)), python_prefix_(bootstrap.environment.python_prefix) {
  bootstrap_ = choose_bootstrap(bootstrap);
  set_log_identity(bootstrap_->rank(), config_.log_level, config_.log_time);
  if (bootstrap_->rank() == 0) {
    for (const auto& remark : config_.remarks) log(LogLevel::warning, remark);
  }
  if (const auto remark = take_common_settings(config_, *bootstrap_); !remark.empty()) log(LogLevel::warning, remark);
  topology_ = std::make_unique<Topology>(Topology::discover(*bootstrap_));
  if (bootstrap.rendezvous && bootstrap.rendezvous->lost >= 0) end_exchanges_when_lost(bootstrap.rendezvous->lost);
  auto options_of_fabric = fabric_options(config_, bootstrap);
  options_of_fabric.rendezvous = bootstrap_->rendezvous();
  options_of_fabric.watch_hosts = [this](bool local_watch) { watch_hosts_by(local_watch); };
  own(make_fabric(*bootstrap_, *topology_, *liveness_, options_of_fabric));
  if (topology_->size() > 1) {
    stall_watch_ = std::make_unique<StallWatch>(*topology_, fabric_->watches_host(), *liveness_);
  }
  liveness_->on_lost([this] {
    std::scoped_lock lock(mutex_);
    for (const auto& [id, set] : sets_) {
      if (set.engine) set.engine->wake();
    }
  });
  std::vector<int> everybody(static_cast<std::size_t>(topology_->size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto options = engine_options(config_, topology_->local_rank());
  if (everybody.size() > 1) options.autotune = autotune_options(config_);
  const auto exchange = [this](std::string_view mine) { return bootstrap_->allgather(mine); };
  auto engine = make_engine(everybody, exchange, options);
  fabric_->start_watch();  // the bootstrap, which may use the same connections, is over
  if (stall_watch_) stall_watch_->start({fabric_->local_watch(), host_watch_.get()});
  if (host_probes_) host_probes_->start([this] { return stall_watch_->waiting(); });
  std::scoped_lock lock(mutex_);
  sets_[kWorld] = {std::move(everybody), std::move(engine)};
  log(LogLevel::info, description());
  try {
    if (!config_.timeline.empty()) start_timeline(config_.timeline, config_.timeline_marks_cycles);
  } catch (const Error& error) {
    log(LogLevel::error, std::string(error.what()) + "; the job goes on without a timeline of this rank");
  }
}

// Other processes notify the threads, so the ReadySet is in memory that they reach. Late notifications may come until
// the fabric ends. If a rank has no memory for it, all ranks throw Error(unavailable).
void Session::own(std::unique_ptr<Fabric> fabric) {
  const auto exchange = [this](std::string_view mine) { return bootstrap_->allgather(mine); };
  void* const memory = all_or_none(topology_->rank(), exchange, [&] {
    void* const place = fabric->allocate(sizeof(ReadySet));
    if (place != nullptr) return place;
    throw Error(ErrorKind::unavailable, "the shared arena has no memory for process sets; raise PERSEUS_ARENA_BYTES");
  });
  auto* const ready = new (memory) ReadySet;
  fabric_ = {fabric.release(), [liveness = liveness_, ready](Fabric* owned) {
               owned->release(ready);
               delete owned;
             }};
  threads_ = std::make_shared<EngineThreads>(
      *ready, engine_options(config_, topology_->local_rank()).core,
      [liveness = liveness_, rank = topology_->rank()](const std::string& why) {
        liveness->report_lost({.rank = rank, .text = "failed: process sets cannot overlap: " + why, .gave_up = true});
      });
}

// The world has a thread of its own: in most jobs it is the only set.
EngineOptions Session::options_of_sets() const {
  auto options = engine_options(config_, topology_->local_rank());
  options.threads = threads_;
  return options;
}

void Session::watch_hosts_by(bool local_watch) {
  liveness_->name_hosts(topology_->host_names());
  auto made = watch_hosts(*bootstrap_, *topology_, local_watch, *liveness_,
                          {.timeout = config_.heartbeat_timeout,
                           .interfaces = config_.network_interfaces,
                           .patience = std::min(kRendezvous, std::chrono::milliseconds(config_.start_timeout))});
  host_watch_ = std::move(made.connections);
  host_probes_ = std::move(made.probes);
}

void Session::end_exchanges_when_lost(int eventfd) {
  // The caller may close its own descriptor, so this keeps a copy.
  const auto copy = std::make_shared<UniqueFd>(fcntl(eventfd, F_DUPFD_CLOEXEC, 0));
  liveness_->on_lost([copy] {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(copy->get(), &one, sizeof one);
  });
}

Session::~Session() {
  close();
  sets_.clear();
  host_probes_.reset();
  stall_watch_.reset();
  fabric_->end_watch();  // arena memory that the program holds keeps the fabric
}

void Session::close() {
  std::call_once(closing_, [this] { leave(); });
}

void Session::leave() {
  liveness_->remove_wakes();
  const auto until = ProcessSetEngine::Clock::now() + (failing_ ? std::chrono::milliseconds(0) : kGrace);
  std::map<ProcessSetId, Set> sets;
  {
    std::scoped_lock lock(mutex_);
    sets = sets_;
  }
  // The world is closed last, because the other sets are made and removed on it.
  for (auto it = sets.rbegin(); it != sets.rend(); ++it) {
    if (it->second.engine) it->second.engine->close(time_left(until));
  }
  timeline_->stop();
  if (failing_ || failed_itself()) return;
  if (host_watch_) host_watch_->announce_shutdown();
  fabric_->announce_shutdown();
}

bool Session::failed_itself() const {
  std::scoped_lock lock(mutex_);
  return std::any_of(sets_.begin(), sets_.end(),
                     [](const auto& each) { return each.second.engine && each.second.engine->failed_itself(); });
}

std::string Session::description() const {
  return std::string(bootstrap_->name()) + ": " + std::to_string(topology_->size()) +
         (topology_->size() == 1 ? " rank, " : " ranks, ") + fabric_->description();
}

std::shared_ptr<ProcessSetEngine> Session::make_engine(const std::vector<int>& ranks,
                                                       const BootstrapAllgather& exchange,
                                                       const EngineOptions& options) {
  return all_or_none(topology_->rank(), exchange, [&] { return make_own_engine(ranks, exchange, options); });
}

std::shared_ptr<ProcessSetEngine> Session::make_own_engine(const std::vector<int>& ranks,
                                                           const BootstrapAllgather& exchange, EngineOptions options) {
  auto link = fabric_->connect(ranks, exchange);
  const auto mine = std::find(ranks.begin(), ranks.end(), topology_->rank());
  if (mine == ranks.end()) return nullptr;
  std::vector<int> hosts;
  hosts.reserve(ranks.size());
  for (const int rank : ranks) hosts.push_back(topology_->host_of(rank));
  auto tree = make_tree(static_cast<int>(mine - ranks.begin()), hosts, ranks);
  const auto set_verbs = [this](const Request& request, Completion* completion) {
    return change_sets(request, completion);
  };
  options.timeline = timeline_.get();
  options.several_hosts = std::set(hosts.begin(), hosts.end()).size() > 1;
  if (options.several_hosts) {
    options.wire_dtype = config_.wire_dtype;
    options.wire_from_bytes = config_.wire_from_bytes;
  }
  options.streams = config_.nccl_streams;
  options.device = [this] { return device_for_zeros(); };
  options.device_transports = [this, ranks](const auto& device, const auto& stream, const BootstrapAllgather& by,
                                            auto& why) {
    const DeviceGroup group{.members = ranks,
                            .rank = topology_->rank(),
                            .exchange = by,
                            .liveness = *liveness_,
                            .start_timeout = config_.start_timeout,
                            .library = config_.nccl_library,
                            .python_prefix = python_prefix_,
                            .abort_group = abort_group_};
    return make_device_transport(device, stream, group, why);
  };
  const bool is_world = static_cast<int>(ranks.size()) == topology_->size();
  if (stall_watch_) options.progress = stall_watch_->open(tree, options.negotiator.stalls);
  if (!is_world) options.trace_suffix = " on ranks " + text_of(ranks);
  return {new ProcessSetEngine(std::move(tree), std::move(link), std::move(options), *liveness_, set_verbs),
          [fabric = fabric_, timeline = timeline_](ProcessSetEngine* engine) { delete engine; }};
}

void Session::start_timeline(const std::string& path, bool mark_cycles) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  timeline_->start(path, mark_cycles, {topology_->rank(), topology_->size(), host.data()});
}

std::vector<int> Session::ranks_of(ProcessSetId set) const {
  std::scoped_lock lock(mutex_);
  const auto found = sets_.find(set);
  if (found == sets_.end()) {
    throw Error(ErrorKind::invalid_argument, "there is no process set with id " + std::to_string(set) +
                                                 "; was it removed, or made on other ranks only?");
  }
  return found->second.ranks;
}

std::vector<ProcessSetId> Session::set_ids() const {
  std::scoped_lock lock(mutex_);
  std::vector<ProcessSetId> ids;
  for (const auto& [id, set] : sets_) {
    if (id < kFirstGroup) ids.push_back(id);
  }
  return ids;
}

std::shared_ptr<ProcessSetEngine> Session::engine_of(ProcessSetId set) const {
  {
    std::scoped_lock lock(mutex_);
    const auto found = sets_.find(set);
    if (found != sets_.end() && found->second.engine) return found->second.engine;
  }
  throw Error(ErrorKind::invalid_argument, "rank " + std::to_string(topology_->rank()) + " is not in process set " +
                                               std::to_string(set) + " (ranks " + text_of(ranks_of(set)) + ")");
}

std::shared_ptr<OnDevice> Session::on_device(int number, Stream stream, const std::string& label) {
  return perseus::on_device(device(number, label), stream, label);
}

std::shared_ptr<Device> Session::device(int number, const std::string& label) {
  const std::scoped_lock lock(device_mutex_);
  if (!device_) device_ = open_device(number);
  if (device_->number() == number) return device_;
  throw Error(
      ErrorKind::invalid_argument,
      label + ": the tensor is on device " + std::to_string(number) + ", but rank " +
          std::to_string(topology_->rank()) + " communicates on " + device_->description() +
          "; a process has one device: make it the current one, by local_rank(), before tensors are made there");
}

// Returns the device of a rank that joined before it had a tensor on a device.
std::shared_ptr<Device> Session::device_for_zeros() {
  int number = -1;
  {
    const std::scoped_lock lock(device_mutex_);
    if (device_) return device_;
    number = joining_device_;
  }
  // A process may see fewer devices than there are ranks on its host: its own alone, by CUDA_VISIBLE_DEVICES.
  if (number < 0) number = topology_->local_rank() % std::max(device_count(), 1);
  return device(number, "join");
}

Handle Session::submit(ProcessSetId set, std::shared_ptr<WorkItem> work, bool average, Notify notify) {
  auto engine = engine_of(set);
  auto& request = work->request;
  if (average) request.scale.divisor = engine->size();
  engine->choose_wire_dtype(request);
  check_arguments(*work, engine->size());
  Handle handle{engine, completion_of(work)};
  engine->submit(std::move(work), notify);
  return handle;
}

std::shared_ptr<void> Session::register_memory(ProcessSetId set, void* memory, std::size_t bytes) {
  if (!config_.nccl_registers) return nullptr;
  return engine_of(set)->register_memory(memory, bytes);
}

Handle Session::join(ProcessSetId set, const Prepare& prepare, int number) {
  if (config_.nccl_registers) {
    throw Error(ErrorKind::invalid_argument,
                "join() would give zeros from memory that NCCL does not know, and the others' is registered; unset "
                "PERSEUS_NCCL_REGISTER on all ranks");
  }
  {
    const std::scoped_lock lock(device_mutex_);
    joining_device_ = number;
  }
  auto engine = engine_of(set);
  return {engine, engine->join(prepare)};
}

void Session::synchronize_device() {
  std::shared_ptr<Device> device;
  {
    const std::scoped_lock lock(device_mutex_);
    device = device_;
  }
  try {
    if (device) device->drain();
  } catch (const Error&) {
    liveness_->status().throw_if_failed();  // the usual cause, whose text is more useful
    throw;
  }
  liveness_->status().throw_if_failed();
  std::map<ProcessSetId, Set> sets;
  {
    const std::scoped_lock lock(mutex_);
    sets = sets_;
  }
  for (const auto& [id, set] : sets) {
    if (set.engine) set.engine->inspect().throw_if_failed();
  }
}

Handle Session::post(ProcessSetId set, std::shared_ptr<PointToPointOp> operation) {
  auto engine = engine_of(set);
  if (operation->peer >= engine->size() || operation->peer < (operation->outgoing ? 0 : PointToPointOp::kAnybody)) {
    throw Error(ErrorKind::invalid_argument, std::string(operation->outgoing ? "send to" : "recv from") + " rank " +
                                                 std::to_string(operation->peer) + " of a process set that has " +
                                                 std::to_string(engine->size()));
  }
  return {engine, engine->post(std::move(operation))};
}

Status Session::change_sets(const Request& request, Completion* completion) {
  try {
    return request.verb == Verb::add_process_set ? add_set(request, completion) : remove_set(request, completion);
  } catch (const Error& error) {
    return Status::from(error);
  } catch (const std::exception& error) {
    return {ErrorKind::unavailable, error.what()};
  }
}

// Runs on the world's engine, at the same place of the plan on all ranks, so the ids agree by counting.
Status Session::add_set(const Request& request, Completion* completion) {
  const std::vector<int> ranks(request.ranks.begin(), request.ranks.end());
  const auto world = engine_of(kWorld);
  const auto exchange = [&](std::string_view mine) { return allgather_over(world->transport(), mine); };
  auto engine = make_engine(ranks, exchange, options_of_sets());
  std::scoped_lock lock(mutex_);
  const auto id = next_set_++;
  sets_[id] = {ranks, std::move(engine)};
  if (completion != nullptr) completion->number = id;
  return {};
}

Status Session::remove_set(const Request& request, Completion* completion) {
  const auto id = static_cast<ProcessSetId>(request.ranks.front());
  std::shared_ptr<ProcessSetEngine> engine;
  {
    std::scoped_lock lock(mutex_);
    const auto found = sets_.find(id);
    if (id == kWorld || found == sets_.end()) {
      return {ErrorKind::invalid_argument, "there is no process set with id " + std::to_string(id) + " to remove"};
    }
    engine = std::move(found->second.engine);
    sets_.erase(found);
  }
  // The removal is the last thing that the set decides: what all ranks submitted before it is finished.
  if (engine) engine->finish_pending(ProcessSetEngine::Clock::now() + kRemovalGrace);
  if (engine) engine->close(kGrace);
  if (completion != nullptr) completion->number = id;
  return {};
}

ProcessSetId Session::add_group(const std::vector<int>& ranks, const BootstrapAllgather& exchange,
                                std::chrono::milliseconds timeout) {
  auto options = options_of_sets();
  if (timeout.count() > 0) options.negotiator.stalls.shutdown = timeout;
  auto engine = make_engine(ranks, exchange, options);
  if (!engine) {
    throw Error(ErrorKind::invalid_argument, "rank " + std::to_string(topology_->rank()) + " makes a group of ranks " +
                                                 text_of(ranks) + ", and is not among them");
  }
  std::scoped_lock lock(mutex_);
  const auto id = next_group_++;
  sets_[id] = {ranks, std::move(engine)};
  return id;
}

void Session::remove_group(ProcessSetId group, std::chrono::milliseconds grace) {
  std::shared_ptr<ProcessSetEngine> engine;
  {
    std::scoped_lock lock(mutex_);
    const auto found = sets_.find(group);
    if (group < kFirstGroup || found == sets_.end()) return;
    engine = std::move(found->second.engine);
    sets_.erase(found);
  }
  engine->close(grace);
}

std::shared_ptr<void> Session::allocate(std::size_t bytes) {
  void* memory = fabric_->allocate(bytes);
  if (memory == nullptr) {
    throw Error(ErrorKind::unavailable, "the shared arena has no " + std::to_string(bytes) +
                                            " bytes left; raise PERSEUS_ARENA_BYTES or use private memory");
  }
  // A forked child drops its copies too, but the memory still belongs to its parent.
  return {memory, [fabric = fabric_, owner = getpid()](void* given) {
            if (getpid() == owner) fabric->release(given);
          }};
}

void Session::abandon_after_fork() {
  if (stall_watch_) stall_watch_->abandon_after_fork();
  fabric_->close_after_fork();
  if (host_watch_) host_watch_->close_after_fork();
  if (host_probes_) host_probes_->close_after_fork();
}

}  // namespace perseus
