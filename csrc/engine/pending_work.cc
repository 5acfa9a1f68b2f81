#include "engine/pending_work.h"

#include <algorithm>
#include <utility>

namespace perseus {

void PendingWork::put(std::shared_ptr<WorkItem> work) {
  Entry entry{std::move(work)};
  WorkItem& item = *entry.work;
  // The timeline must have the submission before the engine's thread can write its end.
  std::string track;
  const bool traced = tracing_.on();
  if (traced) track = tracing_.submitted(item);
  try {
    const std::scoped_lock lock(mutex_);
    if (!closed_.ok()) failure_of(item, closed_).throw_if_failed();
    if (!refused_.empty()) throw Error(ErrorKind::invalid_argument, item.request.label() + ": " + refused_);
    const auto [at, is_new] = entries_.try_emplace(item.request.name, std::move(entry));
    if (!is_new) {
      throw Error(ErrorKind::invalid_argument,
                  item.request.label() +
                      ": this name is already in flight on this rank; wait for it (synchronize) or use another name");
    }
    new_.push_back(&at->second);
  } catch (const Error&) {
    if (traced) tracing_.refused(std::move(track));
    throw;
  }
}

std::vector<WorkItem*> PendingWork::take_new() {
  const std::scoped_lock lock(mutex_);
  std::vector<WorkItem*> taken;
  if (new_.empty()) return taken;
  taken.reserve(new_.size());
  for (auto* entry : new_) {
    entry->taken = true;
    taken.push_back(entry->work.get());
  }
  new_.clear();
  return taken;
}

void PendingWork::contradict(std::string_view name, const std::string& call) {
  const std::scoped_lock lock(mutex_);
  if (const auto found = entries_.find(name); found != entries_.end())
    contradicted_.emplace_back(found->second.work, call);
}

std::vector<Request> PendingWork::take_contradictions() {
  const std::scoped_lock lock(mutex_);
  std::vector<Request> requests;
  for (auto& [work, call] : std::exchange(contradicted_, {})) {
    const auto entry = entries_.find(work->request.name);
    if (entry == entries_.end() || entry->second.work != work) continue;
    auto& request = requests.emplace_back();
    request.verb = Verb::barrier;
    request.name = work->request.name;
    request.call = std::move(call);
  }
  return requests;
}

PendingWork::Entry* PendingWork::find_taken(std::string_view name) {
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second.taken ? &found->second : nullptr;
}

WorkItem* PendingWork::find(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  const auto* entry = find_taken(name);
  return entry == nullptr ? nullptr : entry->work.get();
}

bool PendingWork::empty() {
  const std::scoped_lock lock(mutex_);
  return entries_.empty();
}

std::vector<std::string> PendingWork::awaited_names() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (entry.taken && entry.work->completion.has_waiters()) names.emplace_back(name);
  }
  return names;
}

std::string PendingWork::any_label() {
  const std::scoped_lock lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [](const auto& each) { return each.second.taken; });
  return found == entries_.end() ? std::string() : found->second.work->request.label_with_members();
}

void PendingWork::finish(std::string_view name, const Status& status) {
  std::shared_ptr<WorkItem> work;
  {
    const std::scoped_lock lock(mutex_);
    auto* entry = find_taken(name);
    if (entry == nullptr) return;
    work = entry->work;
    if (work->open_phases > 0) tracing_.finished(*work, status.ok() ? work->failure : status);
    entries_.erase(name);
  }
  complete(*work, status.ok() ? work->failure : status);
}

void PendingWork::refuse(std::string why) {
  const std::scoped_lock lock(mutex_);
  refused_ = std::move(why);
}

std::vector<std::shared_ptr<Completion>> PendingWork::in_flight() {
  const std::scoped_lock lock(mutex_);
  std::vector<std::shared_ptr<Completion>> all;
  all.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) all.push_back(completion_of(entry.work));
  return all;
}

void PendingWork::close(const Status& reason) {
  std::unordered_map<std::string_view, Entry> entries;
  {
    const std::scoped_lock lock(mutex_);
    if (closed_.ok()) closed_ = reason;
    for (auto& [name, entry] : entries_) {
      if (entry.work->open_phases > 0) tracing_.finished(*entry.work, closed_);
    }
    new_.clear();
    entries_.swap(entries);
  }
  for (auto& [name, entry] : entries) complete(*entry.work, closed_);
}

void PendingWork::complete(WorkItem& work, Status status) {
  if (!status.ok() && status.kind() != ErrorKind::disagreement) status = failure_of(work, std::move(status));
  work.completion.finish(std::move(status));
}

}  // namespace perseus
