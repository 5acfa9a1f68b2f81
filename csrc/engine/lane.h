// One process set at work: its queue, its negotiation, its transport, and the thread that drives them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bootstrap/liveness.h"
#include "control/negotiator.h"
#include "control/roll_call.h"
#include "engine/device_lane.h"
#include "engine/execute.h"
#include "engine/inbox.h"
#include "engine/letters.h"
#include "engine/registry.h"
#include "engine/thread_policy.h"
#include "engine/tracing.h"
#include "engine/underway.h"
#include "engine/work.h"
#include "transport/fabric.h"
#include "tune/autotuner.h"

namespace perseus {

struct LaneOptions {
  NegotiatorOptions negotiator;
  std::int64_t fusion_threshold_bytes = 64 << 20;
  std::chrono::microseconds linger{20};
  std::chrono::microseconds spin{30};
  int core = -1;                 // that the thread is bound to; -1: any
  bool several_hosts = false;    // its ranks are on
  Timeline* timeline = nullptr;  // outlives the lane
  std::string trace_suffix;      // behind the names of tensors there
  std::optional<AutotuneOptions> autotune;
  NanCheck nan_check = NanCheck::off;
  // The type that floating values travel in between hosts where the request names none, of tensors of so many bytes;
  // only for sets on several hosts.
  std::optional<DType> wire;
  std::int64_t wire_from_bytes = 0;
  int streams = 1;                                  // of an accelerator, for collectives beside one another
  std::function<std::shared_ptr<Device>()> device;  // for a rank that has joined; throws Error
  DeviceTransports device_transports;
  std::shared_ptr<Underway> underway = std::make_shared<Underway>();  // is told what the lane does
};

// Process set verbs change the session, not data: the session carries them out.
using SetVerbs = std::function<Status(const Request&, Completion*)>;

using Prepare = std::function<void(const std::shared_ptr<Completion>&)>;

// Lanes are independent of one another: each has its own thread, so overlapping process sets cannot block each other.
// Whoever waits for a handle drives the lane itself meanwhile, which saves two thread switches per collective.
class Lane {
 public:
  Lane(Tree tree, Link link, LaneOptions options, Liveness& liveness, SetVerbs set_verbs);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  int rank() const { return tree_.rank; }
  int size() const { return tree_.size(); }
  const std::vector<int>& world_ranks() const { return tree_.world_ranks; }
  Transport& transport() { return *link_.transport; }
  // What travels with fewer bits by the settings alone.
  void choose_wire(Request& request) const;

  // Throws Error(invalid_argument) for a name in flight, or the reason why the lane takes no more work.
  // A caller who waits at once drives the lane itself: it submits without a ring, so that no thread is woken for it.
  void submit(std::shared_ptr<Work> work, bool ring = true);

  // A message from or to one rank of the lane. Throws Error, as submit().
  std::shared_ptr<Completion> post(std::shared_ptr<Letter> letter);

  // This rank has no more work until all ranks have joined. `prepare`: sees the completion before it can be done.
  std::shared_ptr<Completion> join(const Prepare& prepare = {});

  using Clock = Negotiator::Clock;

  // Until the completion is done, or `until`. Never throws; the outcome is in the completion. `rung`: as its work was
  // submitted.
  void wait(Completion& completion, bool rung = true, Clock::time_point until = Clock::time_point::max());

  // The ranks of the job that have not asked for `name`, which this rank waits for: all ranks are asked, until `until`.
  // Nothing where they do not answer, as while data are under way.
  std::optional<std::vector<int>> missing(const std::string& name, Clock::time_point until);

  // Tells the others that this rank leaves, finishes what is under way, and fails what is left. `grace`: how long the
  // others' answer is waited for. Idempotent. Not from a callback.
  void close(std::chrono::milliseconds grace);

  // Memory on the device that comes again and again: see Registry.
  std::shared_ptr<void> register_memory(void* memory, std::size_t bytes) { return registry_.add(memory, bytes); }

  // A collective failed, and not because a peer was lost: others may be waiting for this rank in the middle of it.
  bool failed_itself() const { return failed_itself_.load(std::memory_order_acquire); }

  // From any thread: somebody was lost, look at once.
  void wake() { link_.control->doorbell().ring(); }

 private:
  class Overlapping;
  enum class Cycle { idle, busy, linger };
  struct Question {
    std::string name;
    std::vector<int> missing;  // once it is complete
    Completion completion;
  };

  void put(std::shared_ptr<Work> work);
  void put_traced(std::shared_ptr<Work> work);
  std::unique_ptr<Autotuner> make_autotuner() const;
  void run();
  Cycle cycle();
  Cycle run_cycle();
  template <class Call>
  void guarded(const Call& call);
  void end_by_exception(const Status& why);
  void drive(std::unique_lock<std::mutex> driving, Completion& completion, Clock::time_point until);
  void wait_or_drive(Completion& completion, bool rung, Clock::time_point until);
  void tell_waiting(Clock::time_point now);
  void forget_waiting();
  bool take_inbox(Clock::time_point now);
  void attend_roll_call(Clock::time_point now);
  void hear_last_letters();
  void send_last_letters(Clock::time_point deadline);
  void say_last_words();
  bool receive(Clock::time_point now);
  void deliver_plans();
  bool should_linger(bool arrived, Clock::time_point now);
  void carry_out(std::span<const Decision> decisions);
  void carry_out_runs(std::span<const Decision> runs);
  void carry_out_other(const Decision& decision);
  void run_batches(std::span<const std::vector<Task>> batches);
  void run_batch(const std::vector<Task>& tasks);
  void run_overlapping(std::span<const std::vector<Task>> batches);
  void finish_batch(const std::vector<Task>& tasks, const Status& status);
  void fail_batch(const Status& status, bool on_host);
  void fail_lane(const Status& status);
  Status move_data(const std::vector<Task>& tasks);
  Status move_data_on_device(const std::vector<Task>& tasks);
  DeviceLane& device_lane(const std::vector<Task>& tasks);
  void check_device();
  void tell_failure(const Status& why);
  void tune(const std::vector<Task>& tasks);
  void use(const std::vector<std::int64_t>& values);
  void finish(Work& work, Status status);
  void fail(const Decision& decision);
  // `all`: messages between two ranks, too; where a rank left in order, the others' go on.
  void break_off(const Status& reason, bool all = true);
  std::chrono::microseconds sleep_limit();

  Tree tree_;
  Link link_;
  LaneOptions options_;
  Liveness& liveness_;
  SetVerbs set_verbs_;
  LaneTracing tracing_;
  Inbox inbox_;

  std::mutex driver_;  // guards what follows, up to the blank line: whoever holds it drives
  Negotiator negotiator_;
  Letters letters_;
  RollCall roll_call_;
  std::map<std::uint64_t, std::shared_ptr<Question>> questions_;  // by number
  std::uint64_t next_question_ = 0;
  Registry registry_;                         // of memory for the device's transports
  std::unique_ptr<DeviceLane> device_lane_;   // made by the first plan that needs it
  std::vector<std::shared_ptr<Work>> taken_;  // from the inbox, on its way to pending_; null where it is there
  std::unordered_map<std::string_view, std::shared_ptr<Work>> pending_;  // by the names in the works themselves
  std::shared_ptr<Completion> joining_;
  Status broken_;
  Clock::time_point burst_since_{};
  std::chrono::microseconds linger_{0};  // 0: no burst is under way
  bool small_burst_ = true;
  bool said_leave_ = false;
  bool dozing_ = false;  // the engine sleeps until it is rung for, however long that takes
  std::chrono::microseconds spin_;
  std::chrono::microseconds poll_{0};
  Clock::time_point next_stall_check_{};
  Clock::time_point quiet_since_{};  // nothing was decided, though work is pending, or awaited_ has not come
  std::shared_ptr<const Letter> awaited_;
  bool told_waiting_ = false;             // so
  std::unique_ptr<Autotuner> autotuner_;  // at the root, where asked for
  std::int64_t carried_out_ = 0;          // runs of the plans so far, the same on all ranks

  std::mutex join_mutex_;  // guards asked_join_
  std::shared_ptr<Completion> asked_join_;

  std::mutex questions_mutex_;  // guards asked_questions_
  std::vector<std::shared_ptr<Question>> asked_questions_;

  ThreadPolicy policy_;
  std::atomic<bool> failed_itself_{false};
  std::atomic<bool> urgent_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> stop_{false};
  Completion closed_;  // done once the lane takes part in nothing any more
  std::once_flag closing_;
  std::thread thread_;
};

}  // namespace perseus
