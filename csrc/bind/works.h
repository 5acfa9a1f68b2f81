// Work made of what Python passes. Read without pybind11's conversions, which would cost more than all the rest: these
// are called once for every tensor that is communicated.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bind/bind.h"

namespace perseus::bind {

// Throw what Python raised for objects of another type, or Error(invalid_argument).
std::int64_t integer(PyObject* object);
double real(PyObject* object);
std::string text(PyObject* object);
DType dtype_of(std::int64_t value);
ReduceOp op_of(std::int64_t value);

// A tensor as Python describes it: address, dtype, shape, device. Borrows the tuple.
class View {
 public:
  explicit View(PyObject* tuple);
  void* address() const { return reinterpret_cast<void*>(integer(PyTuple_GET_ITEM(tuple_, 0))); }
  bool on_host() const;
  Member member() const;

 private:
  PyObject* tuple_;
};

// `inputs`: a list of views.
std::shared_ptr<Work> work_for(Verb verb, std::string name, PyObject* inputs = nullptr);

// `outputs`: a list of views, or None for in place.
std::shared_ptr<Work> work_with_outputs(Verb verb, std::string name, PyObject* inputs, PyObject* outputs);

// -1: as they are.
void set_wire(Request& request, std::int64_t wire_dtype);

Pending submit(std::shared_ptr<Work> work, int process_set, bool average, pybind11::object tensors);

// For a caller who has nothing else to do: complete on return, well or not.
Pending submit_and_wait(std::shared_ptr<Work> work, int process_set, bool average, pybind11::object tensors);

}  // namespace perseus::bind
