// Makes work items of what Python passes. Reads the arguments without pybind11's conversions, which would cost more
// than all the rest: these functions are called once for every tensor that is communicated.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/tables.h"
#include "bind/bind.h"

namespace perseus::bind {

// The thread that executes an allreduce.
enum class Start : std::uint8_t { PERSEUS_STARTS(PERSEUS_ENUMERATOR) };

// These throw what Python raised for objects of another type, or Error(invalid_argument).
std::int64_t integer(PyObject* object);
double real(PyObject* object);
std::string text(PyObject* object);

// Made of a string, or of a tuple: the name, the framework's name of the call (Request::call), and its names of the
// tensors (Request::member_names), which may be left out.
struct Naming {
  std::string name, call, members = {};
};
Naming naming(PyObject* object);

DType dtype_of(std::int64_t value);
ReduceOp op_of(std::int64_t value);

// A tensor as Python describes it: address, dtype, shape, device. Borrows the tuple.
class View {
 public:
  explicit View(PyObject* tuple);
  void* address() const { return reinterpret_cast<void*>(integer(PyTuple_GET_ITEM(tuple_, 0))); }
  int device() const;  // kHost, or the number of an accelerator
  Member member() const;

 private:
  PyObject* tuple_;
};

// Makes a work item; `inputs` is a list of views.
std::shared_ptr<WorkItem> work_for(Verb verb, Naming naming, PyObject* inputs = nullptr);

// Makes a work item; `outputs` is a list of views, or None if the inputs are changed in place.
std::shared_ptr<WorkItem> work_with_outputs(Verb verb, Naming naming, PyObject* inputs, PyObject* outputs);

// Makes an allgather or reduce-scatter write its results to device memory of the caller; `outputs` is a list of views,
// or None if the core allocates the results.
void write_to(WorkItem& work, PyObject* outputs);

// The ReduceOptions of perseus_like/tensor.py, which is a tuple. The constructor throws Error(invalid_argument) for
// another tuple.
struct ReduceOptions {
  explicit ReduceOptions(PyObject* tuple);
  void apply_to(Request& request) const;

  ReduceOp op;
  bool average;
  Scale scale;
  std::int8_t wire_dtype;  // as Request::wire_dtype
};

PythonHandle submit(std::shared_ptr<WorkItem> work, int process_set, bool average, pybind11::object tensors);

// Submits without waking a thread, for a caller whose next call waits for the result.
PythonHandle submit_quietly(std::shared_ptr<WorkItem> work, int process_set, bool average, pybind11::object tensors);

// Submits and waits: the work is complete on return, successful or not.
PythonHandle submit_and_wait(std::shared_ptr<WorkItem> work, int process_set, bool average, pybind11::object tensors);

}  // namespace perseus::bind

template <>
class pybind11::detail::type_caster<perseus::bind::Naming> {
 public:
  PYBIND11_TYPE_CASTER(perseus::bind::Naming, const_name("str | tuple[str, str] | tuple[str, str, str]"));

  bool load(handle source, bool) {
    value = perseus::bind::naming(source.ptr());
    return true;
  }
};
