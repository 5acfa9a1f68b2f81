// The session owns everything between init and shutdown. It is started in order and stopped in reverse.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "bootstrap/choose.h"
#include "bootstrap/topology.h"
#include "bootstrap/watch/host_watch.h"
#include "bootstrap/watch/liveness.h"
#include "device/device.h"
#include "engine/process_set_engine.h"
#include "stall/stall_watch.h"
#include "transport/device_transport.h"
#include "transport/fabric.h"

namespace perseus {

using ProcessSetId = int;
inline constexpr ProcessSetId kWorld = 0;
inline constexpr ProcessSetId kFirstGroup = 1 << 30;  // sets that are not known to all ranks

// A collective in progress. The handle does not keep its engine, which ends with the session: then the work is done.
struct Handle {
  std::weak_ptr<ProcessSetEngine> engine;
  std::shared_ptr<Completion> completion;

  // Blocks until the work is done, or until `until`. Never throws. See ProcessSetEngine::wait.
  void wait(bool notified = true,
            ProcessSetEngine::Clock::time_point until = ProcessSetEngine::Clock::time_point::max()) const {
    if (const auto running = engine.lock()) running->wait(*completion, notified, until);
  }
  // Runs a cycle of the engine on this thread. Never throws. See ProcessSetEngine::poll.
  void poll() const {
    if (const auto running = engine.lock()) running->poll();
  }
  // See ProcessSetEngine::wake.
  void wake() const {
    if (const auto running = engine.lock()) running->wake();
  }
};

class Session {
 public:
  // Collective over all ranks that were started. Throws Error.
  Session(Config config, const BootstrapOptions& bootstrap);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Leaves the job: tells the other ranks, and fails pending work. Idempotent.
  void close();

  const Topology& topology() const { return *topology_; }
  std::string description() const;

  // Submits a request of any verb: checks the set, sets the divisor of an average, and queues the work item. Throws
  // Error. `notify`: see ProcessSetEngine.
  Handle submit(ProcessSetId set, std::shared_ptr<WorkItem> work, bool average, Notify notify = Notify::now);
  // See ProcessSetEngine.
  void contradict(ProcessSetId set, std::string_view name, const std::string& call) {
    engine_of(set)->contradict(name, call);
  }
  // Returns the device state of a request whose tensors are ready after what `stream` was given so far. Throws Error.
  std::shared_ptr<OnDevice> on_device(int number, Stream stream, const std::string& label);
  // `number` is the framework's current device, which a rank uses that has had no tensor on a device; -1: any device.
  Handle join(ProcessSetId set, const Prepare& prepare = {}, int number = -1);

  // Blocks until the device has executed everything that this process has queued on it. Throws the Error of a lost
  // rank, or of an engine that has failed: then results that were complete when they were queued may be wrong.
  void synchronize_device();

  // Posts a message between two ranks of a set; `operation.peer` is a rank in the set. Throws Error.
  Handle post(ProcessSetId set, std::shared_ptr<PointToPointOp> operation);

  // See ProcessSetEngine::missing.
  std::optional<std::vector<int>> missing(ProcessSetId set, const std::string& name,
                                          ProcessSetEngine::Clock::time_point until) {
    return engine_of(set)->missing(name, until);
  }

  // Returns the ranks of a set, ascending. Throws Error(invalid_argument) if there is no such set.
  std::vector<int> ranks_of(ProcessSetId set) const;
  std::vector<ProcessSetId> set_ids() const;

  // Makes a set that only its members know of. `exchange` is collective over the members. Ids are this rank's own. If a
  // rank has not arrived after `timeout`, all members fail; 0 means the session's timeout.
  ProcessSetId add_group(const std::vector<int>& ranks, const BootstrapAllgather& exchange,
                         std::chrono::milliseconds timeout);
  // Removes a group. `grace` is how long this rank waits for the other members.
  void remove_group(ProcessSetId group, std::chrono::milliseconds grace);

  // Returns memory that the other ranks of this host reduce in place. Throws Error(unavailable).
  std::shared_ptr<void> allocate(std::size_t bytes);

  // Lets the other ranks of this host reduce memory in place that another library shares between processes, until the
  // returned object is released. Returns null if they would not use it. Throws Error(unavailable).
  std::shared_ptr<void> register_shared_memory(const void* data, std::size_t bytes) {
    return fabric_->register_shared_memory(data, bytes);
  }

  // Registers device memory that requests of this set use repeatedly. Returns null if the memory is not to be
  // registered. Throws Error.
  std::shared_ptr<void> register_memory(ProcessSetId set, void* memory, std::size_t bytes);
  bool registers_memory() const { return config_.nccl_registers; }

  // Starts the timeline of this rank; other ranks need not take part. Throws Error.
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline() { timeline_->stop(); }

  // Tells the session that the process ends because of an error, so that it waits for no answers.
  void mark_failing() { failing_ = true; }

  const Liveness& liveness() const { return *liveness_; }

  // Returns true if an engine of some set failed: see ProcessSetEngine::failed_itself.
  bool failed_itself() const;

  // Called in a forked child, which has none of the threads.
  void abandon_after_fork();

 private:
  struct Set {
    std::vector<int> ranks;
    std::shared_ptr<ProcessSetEngine> engine;  // null on ranks that are not members
  };

  void leave();
  std::shared_ptr<Device> device(int number, const std::string& label);
  std::shared_ptr<Device> device_for_zeros();
  std::shared_ptr<ProcessSetEngine> engine_of(ProcessSetId set) const;
  void own(std::unique_ptr<Fabric> fabric);
  EngineOptions options_of_sets() const;
  void watch_hosts_by(bool local_watch);
  void end_exchanges_when_lost(int eventfd);
  std::shared_ptr<ProcessSetEngine> make_engine(const std::vector<int>& ranks, const BootstrapAllgather& exchange,
                                                const EngineOptions& options);
  std::shared_ptr<ProcessSetEngine> make_own_engine(const std::vector<int>& ranks, const BootstrapAllgather& exchange,
                                                    EngineOptions options);
  Status change_sets(const Request& request, Completion* completion);
  Status add_set(const Request& request, Completion* completion);
  Status remove_set(const Request& request, Completion* completion);

  Config config_;
  std::string python_prefix_;  // where libraries of wheels lie
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Topology> topology_;
  std::shared_ptr<Liveness> liveness_ = std::make_shared<Liveness>();
  std::shared_ptr<xccl::AbortGroup> abort_group_ = make_abort_group(*liveness_);
  std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();  // kept by engines
  std::unique_ptr<Watch> host_watch_;
  std::shared_ptr<Fabric> fabric_;          // arena memory that a framework holds also owns it
  std::shared_ptr<EngineThreads> threads_;  // of all sets but the world; kept by engines
  std::unique_ptr<StallWatch> stall_watch_;
  std::unique_ptr<HostProbes> host_probes_;  // whose thread asks the stall watch

  std::mutex device_mutex_;  // guards device_ and joining_device_
  std::shared_ptr<Device> device_;
  int joining_device_ = -1;

  mutable std::mutex mutex_;  // guards sets_, next_set_ and next_group_
  std::map<ProcessSetId, Set> sets_;
  ProcessSetId next_set_ = 1;
  ProcessSetId next_group_ = kFirstGroup;
  std::atomic<bool> failing_{false};
  std::once_flag closing_;
};

}  // namespace perseus
