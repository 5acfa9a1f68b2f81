// A collective as an asynchronous function of MXNet's engine. It starts when its arrays are ready, occupies no thread,
// and completes for the engine when the core completes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mxnet_api.h"
#include "perseus.h"

namespace perseus::mxnet {

struct Libraries {
  const PerseusApi* core;
  MxnetApi mxnet;
  std::vector<std::string> error_names;  // the Python exception's name, by ErrorKind
};

// Arrays that this object keeps until the engine is done with them.
class Arrays {
 public:
  explicit Arrays(const MxnetApi& api) : api_(api) {}
  ~Arrays();
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  // Throws std::runtime_error.
  Array add(Array array);

  // Keeps the arrays for the life of the process, because a peer may still use their memory.
  void keep_for_good();

 private:
  const MxnetApi& api_;
  std::vector<Array> arrays_;
};

// An array as Python describes it, with the core's numbers.
struct Tensor {
  Array array;
  std::int32_t dtype;
  std::vector<std::int64_t> shape;
};

class Operation {
 public:
  // `request` has the verb, set, operation, factors and root; the constructor fills in the rest.
  Operation(const Libraries& libraries, const PerseusRequest& request, std::string name);

  std::vector<Tensor> inputs;
  std::vector<Array> outputs;       // one for each input; may be the same
  std::vector<Array> also_written;  // other operations wait before they use these

  // Pushes `operation` to the engine, which deletes it. Throws std::runtime_error.
  static void push(Operation* operation, int priority);

 private:
  static void start(void* run, void* on_complete, void* self);
  static void done(void* self, const PerseusOutcome* outcome);
  static void release(void* self);

  void begin(const EngineCallback& on_complete);
  bool find_memory();
  void keep_arrays();
  void complete(int error, const char* message) const;

  const Libraries& libraries_;
  PerseusRequest request_;
  std::string name_;
  Arrays kept_;
  std::vector<PerseusTensor> views_;
  std::vector<void*> targets_;
  EngineCallback on_complete_{};
};

}  // namespace perseus::mxnet
