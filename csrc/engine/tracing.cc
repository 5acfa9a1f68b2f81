#include "engine/tracing.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace perseus {

namespace {

std::string_view verb_of(const Request& request) { return name_of(request.verb); }

// Returns the shape as Horovod's timeline shows it; for a group, the number of its tensors.
std::string shape_of(const Request& request) {
  if (request.members.empty()) return {};
  if (request.members.size() == 1) return to_string(request.members.front().shape);
  return std::to_string(request.members.size()) + " tensors";
}

}  // namespace

TraceEvent EngineTracing::event(TraceEvent::Kind kind, Clock::time_point at, const Request& request) const {
  TraceEvent event;
  event.kind = kind;
  event.at = at;
  event.track = request.name + suffix_;
  return event;
}

std::string EngineTracing::submitted(WorkItem& work) {
  auto begin = event(TraceEvent::Kind::begin, Clock::now(), work.request);
  begin.prefix = "negotiate";
  begin.what = verb_of(work.request);
  auto track = begin.track;
  work.open_phases = 1;
  timeline_->record(std::move(begin));
  return track;
}

void EngineTracing::refused(std::string track) {
  TraceEvent end;
  end.kind = TraceEvent::Kind::end;
  end.at = Clock::now();
  end.track = std::move(track);
  end.note = "refused";
  timeline_->record(std::move(end));
}

void EngineTracing::arrived(const std::vector<Negotiator::Arrival>& arrivals) {
  const auto now = Clock::now();
  std::vector<TraceEvent> events;
  for (const auto& arrival : arrivals) {
    for (const int rank : arrival.world_ranks) {
      TraceEvent tick;
      tick.kind = TraceEvent::Kind::instant;
      tick.at = now;
      tick.track = arrival.name + suffix_;
      tick.number = rank;
      events.push_back(std::move(tick));
    }
  }
  if (!events.empty()) timeline_->record(events);
}

void EngineTracing::cycle(Clock::time_point now) {
  if (!timeline_->marks_cycles()) return;
  TraceEvent mark;
  mark.kind = TraceEvent::Kind::instant;
  mark.at = now;
  mark.track = "cycles" + suffix_;
  mark.what = "cycle_start";
  timeline_->record(std::move(mark));
}

void EngineTracing::decided(const std::vector<BatchItem>& tasks, std::int64_t sequence) {
  const auto now = Clock::now();
  std::vector<TraceEvent> events;
  for (const auto& task : tasks) {
    const auto place = sequence++;
    if (task.work == nullptr) continue;
    const auto& request = *task.request;
    if (std::exchange(task.work->open_phases, 2) > 0) events.push_back(event(TraceEvent::Kind::end, now, request));
    auto whole = event(TraceEvent::Kind::begin, now, request);
    whole.what = verb_of(request);
    whole.sequence = place;
    whole.bytes = request.bytes();
    if (!request.members.empty()) whole.dtype = name_of(request.members.front().dtype);
    whole.note = shape_of(request);
    events.push_back(std::move(whole));
    events.push_back(event(TraceEvent::Kind::begin, now, request));
    events.back().what = "queue";
  }
  if (!events.empty()) timeline_->record(events);
}

void EngineTracing::begins(const std::vector<BatchItem>& tasks, std::string_view transport) {
  const auto now = Clock::now();
  std::vector<TraceEvent> events;
  for (const auto& task : tasks) {
    if (task.work == nullptr || task.work->open_phases == 0) continue;
    events.push_back(event(TraceEvent::Kind::end, now, *task.request));
    events.push_back(event(TraceEvent::Kind::begin, now, *task.request));
    events.back().prefix = transport;
    events.back().what = verb_of(*task.request);
  }
  if (!events.empty()) timeline_->record(events);
}

// Packing and unpacking overlap with the reduction of other chunks: the timeline shows their total lengths, at both
// ends.
void EngineTracing::ends(const std::vector<BatchItem>& tasks, Clock::time_point began, const host::CopyTimes& copies) {
  const auto now = Clock::now();
  std::vector<TraceEvent> events;
  const auto copy = [&](const Request& request, std::string_view what, Clock::time_point from, Clock::time_point to) {
    events.push_back(event(TraceEvent::Kind::begin, from, request));
    events.back().prefix = what;
    events.back().what = "fusion_buffer";
    events.push_back(event(TraceEvent::Kind::end, to, request));
  };
  for (const auto& task : tasks) {
    if (task.work == nullptr || task.work->open_phases == 0) continue;
    const auto in = std::min(now, began + copies.in), out = std::max(in, now - copies.out);
    if (in > began) copy(*task.request, "memcpy_in", began, in);
    if (out < now) copy(*task.request, "memcpy_out", out, now);
    events.push_back(event(TraceEvent::Kind::end, now, *task.request));
    task.work->open_phases = 1;
  }
  if (!events.empty()) timeline_->record(events);
}

void EngineTracing::finished(WorkItem& work, const Status& status) {
  const auto now = Clock::now();
  std::vector<TraceEvent> events;
  for (; work.open_phases > 0; --work.open_phases) {
    events.push_back(event(TraceEvent::Kind::end, now, work.request));
    if (!status.ok()) events.back().note = status.text();
  }
  timeline_->record(events);
}

void WaitTracing::mark(TraceEvent::Kind kind) const {
  TraceEvent event;
  event.kind = kind;
  event.at = TraceEvent::Clock::now();
  const auto thread = static_cast<pid_t>(syscall(SYS_gettid));  // glibc has gettid() from 2.30 on
  event.track = thread == getpid() ? "main thread" : "thread " + std::to_string(thread);
  if (kind == TraceEvent::Kind::begin) event.what = "synchronize";
  timeline_->record(std::move(event));
}

}  // namespace perseus
