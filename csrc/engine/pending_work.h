// Holds the work items that a process set has in flight, by name, from their submission to their completion.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/tracing.h"
#include "engine/work_item.h"

namespace perseus {

// Framework threads put work items; the driver of the engine takes and finishes them. Thread-safe.
class PendingWork {
 public:
  explicit PendingWork(EngineTracing& tracing) : tracing_(tracing) {}

  // Throws Error(invalid_argument) if the name is in flight already, or the reason given to close().
  void put(std::shared_ptr<WorkItem> work);

  // Returns the work items that were put since the last call, in their order. They stay in this table.
  std::vector<WorkItem*> take_new();

  // Records that this rank does something else under a name that is in flight; `call` says what it is. Does nothing if
  // the name is not in flight.
  void contradict(std::string_view name, const std::string& call);

  // Returns a request for each name that was contradicted since the last call and is in flight. Work of these names
  // that was not taken yet is new.
  std::vector<Request> take_contradictions();

  // Returns the work item of this name if take_new() has returned it and it is not finished; null otherwise.
  WorkItem* find(std::string_view name);
  bool contains(std::string_view name) { return find(name) != nullptr; }
  bool empty();
  // Returns the names of the work items that take_new() has returned and that a thread waits for.
  std::vector<std::string> awaited_names();
  // Returns the label of one of the work items that take_new() has returned; empty if there is none.
  std::string any_label();

  // Completes the work item of this name, if find() would return one, with `status`, or with its own failure if
  // `status` is ok. The name may be used again before the waiter can know that the work is done.
  void finish(std::string_view name, const Status& status);

  // From now on put() throws Error(invalid_argument) with this text; if it is empty, put() takes work again.
  void refuse(std::string why);

  // Returns the completions of everything that is in flight.
  std::vector<std::shared_ptr<Completion>> in_flight();

  // Fails everything that is in flight. From now on put() throws the first reason that was given here.
  void close(const Status& reason);

 private:
  struct Entry {
    std::shared_ptr<WorkItem> work;
    bool taken = false;
  };

  Entry* find_taken(std::string_view name);
  void complete(WorkItem& work, Status status);

  EngineTracing& tracing_;
  std::mutex mutex_;                                     // guards the rest
  std::unordered_map<std::string_view, Entry> entries_;  // keys are the names in the work items
  std::vector<Entry*> new_;
  std::vector<std::pair<std::shared_ptr<WorkItem>, std::string>> contradicted_;
  std::string refused_;  // why put() takes no work for now; empty: it does
  Status closed_;
};

}  // namespace perseus
