// One execution of a kernel: turns TensorFlow's tensors into a request for the core, and its results into tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel.h"

namespace perseus::tensorflow {

class Call {
 public:
  Call(Kernel& kernel, TF_OpKernelContext* context, Kernel::Done done);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  using Key = std::pair<std::int32_t, std::string>;  // the process set, and the name in it

  Key key() const { return {kernel_.attributes().process_set, name_}; }
  // Identifies the execution of a function, or the run of a session, that this call belongs to.
  std::int64_t step() const { return step_; }
  void holds_name() { holds_name_ = true; }
  bool is_holding_name() const { return holds_name_; }

  // Submits the request to the core, which owns the call from then on. If that fails, the call ends at once.
  static void submit(std::unique_ptr<Call> call, bool blocking);

  // Makes the call of this name that is in flight fail on all ranks, if they have not agreed on it.
  void contradict_in_flight() const;

 private:
  static void completed(void* call, const PerseusOutcome* outcome);
  // Reports the end of the call to TensorFlow. The kernel may be gone afterwards.
  static void end(std::unique_ptr<Call> call);

  std::int32_t start(bool blocking, char* message, std::size_t capacity);
  std::int32_t start_contradiction(char* message, std::size_t capacity);
  bool prepare();
  TF_Tensor* get_input(int index);
  void reduce_into_output(int index, TF_Tensor* input);
  void read_splits(const TF_Tensor* tensor);
  void describe(const TF_Tensor* tensor);
  PerseusRequest request();
  void take(const PerseusOutcome& outcome);
  void keep_tensors();
  void take_result(int index, const PerseusTensor& result, void* work);
  void set_int32(int index, const std::int64_t* values, int count, bool scalar);
  void fail(std::int32_t kind, const std::string& message);
  void fail_as_crossed();

  Kernel& kernel_;
  TF_OpKernelContext* context_;
  Kernel::Done done_;
  std::string name_;
  std::int64_t step_;
  bool holds_name_ = false;   // or waits for it
  bool contradicts_ = false;  // sends no tensors, but a request that disagrees with the other ranks' calls
  Status status_;
  std::vector<TF_Tensor*> tensors_held_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<PerseusTensor> tensors_;
  std::vector<void*> targets_;
  std::vector<std::int64_t> splits_;
};

}  // namespace perseus::tensorflow
