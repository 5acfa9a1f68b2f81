#include "engine/lane.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/futex.h"
#include "base/log.h"

namespace perseus {

namespace {

constexpr std::chrono::microseconds kForever = std::chrono::hours(1);
constexpr std::chrono::microseconds kLook{100'000};     // how often waiting work looks at the clock
constexpr std::chrono::microseconds kShortestPoll{20};  // engines without a ring are asked again so soon
constexpr std::chrono::microseconds kLongestPoll{500};

// Rounded up: who sleeps so long has reached it.
std::chrono::microseconds left(Negotiator::Clock::time_point until) {
  if (until == Negotiator::Clock::time_point::max()) return kForever;
  return std::max(std::chrono::ceil<std::chrono::microseconds>(until - Negotiator::Clock::now()),
                  std::chrono::microseconds(1));
}

void bind_to_core(int core) {
  if (core < 0) return;
  cpu_set_t only;
  CPU_ZERO(&only);
  int error = EINVAL;
  if (core < CPU_SETSIZE) {
    CPU_SET(core, &only);
    error = pthread_setaffinity_np(pthread_self(), sizeof only, &only);
  }
  if (error == 0) return;
  log(LogLevel::warning, "PERSEUS_THREAD_AFFINITY: the engine's thread cannot be bound to core " +
                             std::to_string(core) + ": " + std::strerror(error));
}

}  // namespace

Lane::Lane(Tree tree, Link link, LaneOptions options, Liveness& liveness, SetVerbs set_verbs)
    : tree_(tree),
      link_(std::move(link)),
      options_(std::move(options)),
      liveness_(liveness),
      set_verbs_(std::move(set_verbs)),
      tracing_(options_.timeline, options_.trace_suffix),
      negotiator_(std::move(tree), options_.negotiator),
      letters_(*link_.control, tree_.world_ranks),
      roll_call_(tree_, [this](const std::string& name) { return pending_.contains(name); }),
      spin_(options_.spin),
      autotuner_(make_autotuner()),
      policy_(options_.several_hosts),
      thread_([this] { run(); }) {}

std::unique_ptr<Autotuner> Lane::make_autotuner() const {
  if (!options_.autotune || !tree_.is_root()) return nullptr;
  const auto streams = link_.transport->streams();
  const Tunables start = {options_.fusion_threshold_bytes, options_.linger.count(),
                          static_cast<std::int64_t>(link_.transport->chunk_bytes()), streams};
  auto options = *options_.autotune;
  if (streams == 1) options.fixed[static_cast<std::size_t>(Tunable::streams)] = true;
  if (std::all_of(options.fixed.begin(), options.fixed.end(), std::identity())) return nullptr;
  return std::make_unique<Autotuner>(std::move(options), start);
}

Lane::~Lane() { close(std::chrono::milliseconds(0)); }

void Lane::choose_wire(Request& request) const {
  const bool may = request.verb == Verb::allreduce && request.op == ReduceOp::sum && request.wire < 0;
  if (!may || !options_.wire || request.bytes() < options_.wire_from_bytes) return;
  request.wire = static_cast<std::int8_t>(*options_.wire);
}

void Lane::submit(std::shared_ptr<Work> work, bool ring) {
  put(std::move(work));
  if (ring) wake();
}

void Lane::put(std::shared_ptr<Work> work) {
  if (tracing_.on()) {
    put_traced(std::move(work));
  } else {
    inbox_.put(std::move(work));
  }
}

// What begins is told before the engine can tell of its end.
void Lane::put_traced(std::shared_ptr<Work> work) {
  auto track = tracing_.submitted(*work);
  try {
    inbox_.put(std::move(work));
  } catch (const Error&) {
    tracing_.refused(std::move(track));
    throw;
  }
}

std::shared_ptr<Completion> Lane::post(std::shared_ptr<Letter> letter) {
  std::shared_ptr<Completion> completion(letter, &letter->completion);
  letters_.post(std::move(letter));
  wake();
  return completion;
}

std::shared_ptr<Completion> Lane::join(const Prepare& prepare) {
  auto completion = std::make_shared<Completion>();
  if (prepare) prepare(completion);
  {
    std::scoped_lock lock(join_mutex_);
    if (asked_join_) {
      completion->on_done = nullptr;  // which may hold the completion itself
      throw Error(ErrorKind::invalid_argument, "join() is already under way on this rank");
    }
    asked_join_ = completion;
  }
  wake();
  return completion;
}

void Lane::wait(Completion& completion, bool rung, Clock::time_point until) {
  if (completion.done()) return;
  if (!policy_.looks()) return wait_or_drive(completion, rung, until);
  const auto begin = Clock::now();
  wait_or_drive(completion, rung, until);
  policy_.add_wait(Clock::now() - begin);
}

void Lane::wait_or_drive(Completion& completion, bool rung, Clock::time_point until) {
  // Whoever holds the driver lock mostly holds it for a moment only.
  constexpr int kTries = 200;
  const WaitTracing traced(tracing_);
  while (!completion.done() && Clock::now() < until) {
    urgent_.store(true, std::memory_order_release);
    std::unique_lock driving(driver_, std::defer_lock);
    for (int i = 0; i < kTries && !driving && !completion.done(); ++i) {
      if (!driving.try_lock()) pause();
    }
    if (!driving) {
      if (!std::exchange(rung, true)) wake();
      completion.wait(std::min(kLook, left(until)));
      continue;
    }
    drive(std::move(driving), completion, until);
  }
}

// Runs cycles on the caller's thread until the completion is done. `driving` holds driver_.
void Lane::drive(std::unique_lock<std::mutex> driving, Completion& completion, Clock::time_point until) {
  auto& bell = link_.control->doorbell();
  auto seen = bell.rings();
  auto spin_until = Clock::now() + spin_;
  bool slept = false;
  while (!completion.done()) {
    bell.attend();
    seen = bell.rings();
    // A caller waits, so nothing is kept back: after a cycle that would linger the next one sends.
    if (cycle() != Cycle::idle) {
      spin_until = Clock::now() + spin_;
      continue;
    }
    if (completion.done()) break;
    const auto now = Clock::now();
    if (now < spin_until) {
      pause();
      continue;
    }
    if (now >= until) break;
    slept = true;
    bell.wait(seen, Sleeper::caller, std::min(sleep_limit(), left(until)));
  }
  // Where spinning was in vain there is somebody who needs this core more.
  spin_ = slept ? std::max(spin_ / 2, std::chrono::microseconds(2)) : std::min(spin_ * 2, options_.spin);
  // What waits needs an engine that looks at the clock; it may have gone to sleep without a limit.
  const bool rouse = negotiator_.waiting() && (link_.control->needs_polling() || std::exchange(dozing_, false));
  driving.unlock();
  bell.hand_back(rouse ? bell.rings() - 1 : seen);
}

void Lane::run() {
  pthread_setname_np(pthread_self(), "perseus-lane");
  bind_to_core(options_.core);
  // The default slack of 50 microseconds is more than a whole linger.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  auto& bell = link_.control->doorbell();
  for (;;) {
    // Before the look at stop_, after which there is one more ring: else it might be slept through.
    const auto seen = bell.rings();
    if (stop_.load(std::memory_order_acquire)) return;
    policy_.apply(Clock::now());
    auto limit = kLook;  // somebody else drives, and may stop any moment
    auto linger = std::chrono::microseconds(0);
    auto result = Cycle::idle;
    if (const std::unique_lock driving(driver_, std::try_to_lock); driving) {
      result = cycle();
      limit = sleep_limit();
      linger = linger_;
      dozing_ = limit > kLook;
    }
    if (result == Cycle::linger) std::this_thread::sleep_for(linger);
    if (result == Cycle::idle) bell.wait(seen, Sleeper::engine, limit);
  }
}

std::chrono::microseconds Lane::sleep_limit() {
  const bool waiting = negotiator_.waiting() || !pending_.empty() || joining_ || letters_.expects() ||
                       roll_call_.open() || link_.control->keeps_any() || (device_lane_ && device_lane_->busy());
  if (!link_.control->needs_polling()) return waiting ? kLook : kForever;
  // Messages come without a ring: ask often while something is expected, else now and then for those who wait for us.
  poll_ = std::clamp(poll_ * 2, kShortestPoll, waiting ? kLongestPoll : kLook);
  return poll_;
}

// The engine's only catch. An exception that `call` throws fails all pending work with its text: it must end neither
// the process, on the engine's thread, nor the caller's wait.
template <class Call>
void Lane::guarded(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    end_by_exception(Status::from(error));
  } catch (const std::bad_alloc&) {
    end_by_exception({ErrorKind::unavailable, "the engine has not enough memory"});
  } catch (const std::exception& error) {
    end_by_exception({ErrorKind::transport, std::string("the engine failed: ") + error.what()});
  }
}

void Lane::end_by_exception(const Status& why) {
  // The exception may have come between begin() and end().
  options_.underway->end();
  // A transport may notice a peer's end before the liveness connections do.
  const auto until = Clock::now() + std::chrono::seconds(1);
  while (why.kind() == ErrorKind::transport && !liveness_.any_lost() && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  fail_lane(liveness_.any_lost() ? liveness_.status() : why);
}

// After an exception the lane is broken and all waits are over: there is nothing to do until the next ring.
Lane::Cycle Lane::cycle() {
  auto result = Cycle::idle;
  guarded([&] { result = run_cycle(); });
  return result;
}

Lane::Cycle Lane::run_cycle() {
  if (liveness_.any_lost() && (broken_.ok() || !letters_.is_over())) break_off(liveness_.status());
  const auto now = Clock::now();
  const bool traced = tracing_.on();
  negotiator_.note_arrivals(traced);
  if (urgent_.exchange(false, std::memory_order_acq_rel)) negotiator_.urge();
  const bool posted = letters_.attend();
  attend_roll_call(now);
  const bool arrived = take_inbox(now);
  const bool heard = receive(now);
  if (now >= next_stall_check_) {
    negotiator_.check_stalls(now);
    tell_waiting(now);
    if (device_lane_) check_device();
    next_stall_check_ = now + kLook;
  }
  if (traced) tracing_.arrived(negotiator_.take_arrivals());
  if (should_linger(arrived, now)) return Cycle::linger;
  if (traced && (arrived || heard)) tracing_.cycle(now);
  for (auto& message : negotiator_.flush(now)) link_.control->send(message.to, std::move(message.bytes));
  bool decided = false;
  for (auto plan = negotiator_.take_decisions(); !plan.empty(); plan = negotiator_.take_decisions()) {
    deliver_plans();
    carry_out(plan);
    decided = true;
  }
  if (decided || (awaited_ && letters_.awaited() != awaited_)) forget_waiting();
  const bool busy = posted || arrived || heard || decided;
  if (busy) poll_ = std::chrono::microseconds(0);
  return busy ? Cycle::busy : Cycle::idle;
}

bool Lane::take_inbox(Clock::time_point now) {
  // In a member, so that an exception here leaves none of them out.
  taken_ = inbox_.take();
  const bool any_taken = !taken_.empty();
  for (auto& work : taken_) {
    if (!broken_.ok()) {
      finish(*std::exchange(work, nullptr), broken_);
      continue;
    }
    constexpr std::int64_t kSmall = 256 << 10;
    small_burst_ = small_burst_ && work->request.bytes() <= kSmall;
    const auto& request = work->request;
    pending_.emplace(request.name, work);
    work.reset();
    negotiator_.submit(request, now);
  }
  taken_.clear();
  {
    std::scoped_lock lock(join_mutex_);
    if (asked_join_ && !joining_) {
      joining_ = asked_join_;
      if (broken_.ok()) {
        negotiator_.join();
      } else {
        std::exchange(asked_join_, nullptr)->finish(broken_);
        joining_.reset();
      }
      return true;
    }
  }
  if (leaving_.load(std::memory_order_acquire) && !letters_.has_outgoing() && !std::exchange(said_leave_, true)) {
    // Where somebody was lost the others are about to hear of that, and of no rank that leaves because of it.
    if (broken_.ok() || !liveness_.any_lost()) {
      letters_.leave();
      negotiator_.leave();
    }
    return true;
  }
  return any_taken;
}

// What a rank has sent before it left can be received afterwards.
void Lane::hear_last_letters() {
  try {
    ControlMessage message;
    while (link_.control->receive(message)) {
      if (Letters::is_letter(message.bytes)) letters_.hear(message.from, message.bytes);
    }
  } catch (const std::exception& error) {
    log(LogLevel::debug, std::string("messages that came at the end are lost: ") + error.what());
  }
}

bool Lane::receive(Clock::time_point now) {
  bool any = false;
  ControlMessage message;
  while ((broken_.ok() || !letters_.is_over()) && link_.control->receive(message)) {
    any = true;
    if (Letters::is_letter(message.bytes)) {
      letters_.hear(message.from, message.bytes);
    } else if (RollCall::is_of(message.bytes)) {
      roll_call_.hear(message.bytes, now);
    } else if (broken_.ok()) {
      negotiator_.receive(message.from, message.bytes, now);
    }
  }
  return any;
}

// A plan too long for a ring goes out in parts. It must be with the children before its collective begins: they cannot
// take part while they wait for the rest, and nobody here would send it.
void Lane::deliver_plans() {
  constexpr std::chrono::microseconds kPatience{200};
  auto& bell = link_.control->doorbell();
  for (const int child : tree_.children) {
    auto seen = bell.rings();
    while (link_.control->keeps_for(child) && broken_.ok() && !liveness_.any_lost()) {
      receive(Clock::now());
      if (link_.control->keeps_for(child)) bell.wait(seen, Sleeper::caller, kPatience);
      seen = bell.rings();
    }
  }
}

// Requests arrive in bursts; waiting briefly lets a burst share a message and a buffer. A burst that goes on is looked
// at less and less often: each look takes a core from the thread that submits.
bool Lane::should_linger(bool arrived, Clock::time_point now) {
  constexpr int kMostLingers = 50;
  const bool worth = arrived && small_burst_ && !negotiator_.urgent() && options_.linger.count() > 0 &&
                     !leaving_.load(std::memory_order_relaxed);
  if (worth && linger_.count() == 0) burst_since_ = now;
  if (worth && now - burst_since_ < kMostLingers * options_.linger) {
    linger_ = std::max(options_.linger, linger_ * 2);
    return true;
  }
  linger_ = std::chrono::microseconds(0);
  small_burst_ = true;
  return false;
}

void Lane::send_last_letters(Clock::time_point deadline) {
  constexpr std::chrono::microseconds kPatience{200};
  auto& bell = link_.control->doorbell();
  for (auto seen = bell.rings(); letters_.attend() || letters_.has_outgoing(); seen = bell.rings()) {
    if (liveness_.any_lost() || Clock::now() >= deadline) return;
    receive(Clock::now());
    if (letters_.has_outgoing()) bell.wait(seen, Sleeper::caller, kPatience);
  }
}

void Lane::close(std::chrono::milliseconds grace) {
  std::call_once(closing_, [&] {
    leaving_.store(true, std::memory_order_release);
    wake();
    const auto deadline = Clock::now() + grace;
    while (!closed_.done() && !liveness_.any_lost() && Clock::now() < deadline) {
      closed_.wait(std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()));
    }
    stop_.store(true, std::memory_order_release);
    wake();
    // The engine may be in a collective whose peers are gone; transports look at the liveness and return.
    thread_.join();
    std::scoped_lock lock(driver_);
    guarded([&] {
      send_last_letters(deadline);
      take_inbox(Clock::now());
      say_last_words();
    });
    const Status reason(ErrorKind::shut_down, "this rank was shut down while it waited");
    break_off(reason);
    letters_.close(reason);
  });
}

}  // namespace perseus
