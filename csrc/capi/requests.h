// Translates requests and outcomes between perseus.h and the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "capi/perseus.h"
#include "engine/work_item.h"

namespace perseus {

// The caller's function and its argument.
struct Callback {
  PerseusDone done;
  void* context;

  explicit Callback(const PerseusRequest& request) : done(request.done), context(request.context) {}
  Callback(PerseusDone function, void* argument) : done(function), context(argument) {}
};

// Makes a work item. `ranks` is the size of the process set. Throws Error(invalid_argument).
std::shared_ptr<WorkItem> work_of(const PerseusRequest& request, int ranks);

// Calls the callback with the outcome of a completion that is done.
void report_outcome(const Callback& callback, const std::shared_ptr<Completion>& completion);

// Copies the text into `message`, cut to its capacity, and returns the number of the kind.
std::int32_t report(ErrorKind kind, std::string_view text, char* message, std::size_t capacity);

}  // namespace perseus
