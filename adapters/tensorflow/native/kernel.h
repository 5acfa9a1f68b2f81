// One collective as a node of a graph: what its attributes say, and its executions.
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
  std::string member_names;  // for texts of errors, a line each
  PerseusReduceOptions reduce{PERSEUS_OP_SUM, 0, 1, 1, PERSEUS_SAME_DTYPE};
  std::int32_t root = 0;
  std::int32_t process_set = 0;
  bool wait = false;  // whoever runs the kernel has nothing else to do
};

// Executions under one name follow one another: a loop may have begun its next round, another thread may run the same.
class Kernel {
 public:
  using Done = std::function<void()>;

  explicit Kernel(Attributes attributes);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const Attributes& attributes() const { return attributes_; }

  // Returns once the work is on its way, and calls `done` when it is complete; that may be before it returns.
  // `blocking`: it is complete on return, unless it had to wait for its turn.
  void run(TF_OpKernelContext* context, Done done, bool blocking);

  // The same, and complete on return.
  void run_and_wait(TF_OpKernelContext* context);

 private:
  friend class Call;

  // The next in line under this name, now that one has ended.
  std::unique_ptr<Call> next(const std::string& name);

  const Attributes attributes_;
  std::mutex mutex_;                                                            // guards what follows
  std::unordered_map<std::string, std::deque<std::unique_ptr<Call>>> waiting_;  // by the names in flight
};

// Kernels for all operations of collectives. Text of what went wrong, or "".
std::string register_kernels();

}  // namespace perseus::tensorflow
