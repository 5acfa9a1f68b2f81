// Where framework threads leave their work for the engine.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/work.h"

namespace perseus {

class Inbox {
 public:
  // Throws Error(invalid_argument) when the name is in flight already, or the reason given to close().
  void put(std::shared_ptr<Work> work) {
    std::scoped_lock lock(mutex_);
    if (!closed_.ok()) told_of(*work, closed_).throw_if_failed();
    if (!in_flight_.insert(work->request.name).second) {
      throw Error(ErrorKind::invalid_argument,
                  work->request.label() +
                      ": this name is already in flight on this rank; wait for it (synchronize) or use another name");
    }
    waiting_.push_back(std::move(work));
  }

  std::vector<std::shared_ptr<Work>> take() {
    std::scoped_lock lock(mutex_);
    return std::exchange(waiting_, {});
  }

  // The name may be used again. Before its work ends.
  void done(std::string_view name) {
    std::scoped_lock lock(mutex_);
    in_flight_.erase(name);
  }

  // From now on put() throws `reason`.
  void close(Status reason) {
    std::scoped_lock lock(mutex_);
    if (closed_.ok()) closed_ = std::move(reason);
  }

 private:
  std::mutex mutex_;  // guards all
  std::vector<std::shared_ptr<Work>> waiting_;
  std::unordered_set<std::string_view> in_flight_;  // names in the works themselves, which live until done()
  Status closed_;
};

}  // namespace perseus
