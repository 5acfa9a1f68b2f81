// The kernel of one collective node of a graph: its attributes and its executions.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core.h"

namespace perseus::tensorflow {

class Call;

struct Attributes {
  std::int32_t verb = PERSEUS_ALLREDUCE;
  std::string name;          // the same on all ranks
  std::string member_names;  // the tensors' names in error texts, one per line
  PerseusReduceOptions reduce{PERSEUS_OP_SUM, 0, 1, 1, PERSEUS_SAME_DTYPE};
  std::int32_t root = 0;
  std::int32_t process_set = 0;
  bool wait = false;  // the caller waits for the result at once
};

// Executions with the same name run one after the other: a loop may have begun its next round, or another thread may
// execute the same node.
class Kernel {
 public:
  using Done = std::function<void()>;

  explicit Kernel(Attributes attributes);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const Attributes& attributes() const { return attributes_; }

  // Starts the execution. `done` is called when it is complete, which may be before run() returns. If `blocking`, it is
  // complete on return, unless an execution of the same name was in progress.
  void run(TF_OpKernelContext* context, Done done, bool blocking);

  // Does the same, and returns when the execution is complete.
  void run_and_wait(TF_OpKernelContext* context);

 private:
  friend class Call;

  // Removes and returns the next waiting execution of this name, after one has ended.
  std::unique_ptr<Call> next(const std::string& name);

  const Attributes attributes_;
  std::mutex mutex_;                                                            // guards waiting_
  std::unordered_map<std::string, std::deque<std::unique_ptr<Call>>> waiting_;  // by the name in flight
};

// Registers the kernels of all collective operations. Returns the error text, or "".
std::string register_kernels();

}  // namespace perseus::tensorflow
