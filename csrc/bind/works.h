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

// A string, or a tuple: the name, what the caller's framework calls it (Request::call), and what it calls the tensors
// (Request::member_names), which may be left out.
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

// `inputs`: a list of views.
std::shared_ptr<Work> work_for(Verb verb, Naming naming, PyObject* inputs = nullptr);

// `outputs`: a list of views, or None for in place.
std::shared_ptr<Work> work_with_outputs(Verb verb, Naming naming, PyObject* inputs, PyObject* outputs);

// -1: as they are.
void set_wire(Request& request, std::int64_t wire_dtype);

Pending submit(std::shared_ptr<Work> work, int process_set, bool average, pybind11::object tensors);

// For a caller whose next call waits for it.
Pending submit_quietly(std::shared_ptr<Work> work, int process_set, bool average, pybind11::object tensors);

// For a caller who has nothing else to do: complete on return, well or not.
Pending submit_and_wait(std::shared_ptr<Work> work, int process_set, bool average, pybind11::object tensors);

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
