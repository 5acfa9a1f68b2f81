// The kernel of one collective node of a graph: its attributes and its executions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

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

// Executions with the same name run one after the other: within one step, a loop may have begun its next round. In two
// steps at once, which two threads run, the ranks might pair executions of different threads, so all of them fail, on
// all ranks: the one in flight is contradicted, and the others send a contradiction in their turn.
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

  enum class Admission { submit, wait };

  // Finds out what happens to a call whose name may be in flight, and keeps it if it has to wait.
  Admission admit(std::unique_ptr<Call>& call);

  // Returns whether a call of another thread came while this call was in flight or waited.
  bool was_crossed(const Call& call) const;

  // Removes and returns the next waiting execution of this name, after one has ended.
  std::unique_ptr<Call> next(const Call& ended);

  const Attributes attributes_;
};

}  // namespace perseus::tensorflow
