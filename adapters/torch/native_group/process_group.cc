// A process group of torch whose all_reduce of one small CPU tensor runs without Python. python -m
// perseus_like.torch.build_group compiles it on the user's machine, against the installed torch.
//
// All that is rare stays in Python: other tensors and collectives, callbacks, futures, errors and time-outs.
#include <pybind11/chrono.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/PyProcessGroup.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "capi/perseus.h"

namespace {

namespace py = pybind11;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// The method of the group in Python that executes all other calls.
constexpr const char* kInPython = "_allreduce_in_python";

const PerseusApi* api = nullptr;
std::int64_t most_elements = 0;  // Python looks after larger tensors

// A callback of a future runs on this thread. Python numbers its collectives, and lends its lock while it waits.
thread_local bool in_callback = false;

// Drops a reference from any thread. torch destroys some groups and works after Python has ended.
void release(py::object& object) {
  if (!object) return;
  if (Py_IsInitialized() == 0) {
    object.release();
    return;
  }
  const py::gil_scoped_acquire gil;
  object = py::object();
}

// The state that a group shares with its works, which may outlive it.
struct Members {
  py::object group;  // a weak reference to the group in Python; destroyed with the GIL
  int process_set = 0;
  std::atomic<std::int64_t> limit_nanoseconds{0};
  std::atomic<std::uint64_t> calls{0};

  ~Members() { release(group); }
};

// The memory of a request in progress, for the core's callback.
void let_go(void* context, const PerseusOutcome* outcome) {
  // Memory that a peer may still use must never be freed.
  if (outcome->memory_is_lent == 0) delete static_cast<at::Tensor*>(context);
}

class NativeWork : public c10d::Work {
 public:
  NativeWork(std::shared_ptr<Members> members, void* handle, at::Tensor tensor, std::uint64_t number)
      : members_(std::move(members)), handle_(handle), tensor_(std::move(tensor)), number_(number) {}

  ~NativeWork() override {
    if (in_python_) {  // the handle in Python keeps the tensor
      release(in_python_);
      api->drop(handle_, nullptr, nullptr);
    } else if (is_complete_) {
      api->drop(handle_, nullptr, nullptr);
    } else {
      api->drop(handle_, &let_go, new at::Tensor(std::move(tensor_)));
    }
  }

  bool wait(std::chrono::milliseconds timeout) override {
    if (is_complete_) return true;
    if (in_callback) return wait_in_python(timeout);
    const auto limit = timeout > std::chrono::milliseconds(0)
                           ? std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count()
                           : members_->limit_nanoseconds.load();
    const auto outcome = api->wait(handle_, limit);
    if (outcome == PERSEUS_OK) return is_complete_ = true;
    if (outcome != PERSEUS_PENDING) return wait_in_python(timeout);
    const py::gil_scoped_acquire gil;
    in_python().attr("raise_timeout")(static_cast<double>(limit) / 1e9);
    return true;
  }

  bool isCompleted() override {
    if (is_complete_) return true;
    if (api->is_done(handle_) == 0) return false;
    const py::gil_scoped_acquire gil;
    return in_python().attr("is_completed")().cast<bool>();
  }

  bool isSuccess() const override {
    if (is_complete_) return true;
    const py::gil_scoped_acquire gil;
    return const_cast<NativeWork*>(this)->in_python().attr("is_success")().cast<bool>();
  }

  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override {
    wait(kNoTimeout);
    return {tensor_};
  }
  std::uint64_t getSequencenumber() const override { return number_; }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const py::gil_scoped_acquire gil;
    return in_python().attr("get_future")().cast<std::shared_ptr<torch::jit::PythonFutureWrapper>>()->fut;
  }

  // Returns the same work in Python, which the first call makes. Hold the GIL.
  const py::object& in_python();

 private:
  bool wait_in_python(std::chrono::milliseconds timeout) {
    const py::gil_scoped_acquire gil;
    return in_python().attr("wait")(timeout).cast<bool>();
  }

  std::shared_ptr<Members> members_;
  void* handle_;
  at::Tensor tensor_;
  std::uint64_t number_;
  std::atomic<bool> is_complete_{false};  // successfully
  py::object in_python_;
};

const py::object& NativeWork::in_python() {
  if (!in_python_) {
    auto made = py::module_::import("perseus_like.torch.distributed.works.native_works")
                    .attr("work_of")(members_->group(), members_->process_set, members_->limit_nanoseconds.load(),
                                     reinterpret_cast<std::uintptr_t>(handle_), tensor_, number_);
    if (!in_python_) in_python_ = std::move(made);  // another thread may have run meanwhile
  }
  return in_python_;
}

std::int32_t dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte: return PERSEUS_DTYPE_UINT8;
    case at::kChar: return PERSEUS_DTYPE_INT8;
    case at::kShort: return PERSEUS_DTYPE_INT16;
    case at::kInt: return PERSEUS_DTYPE_INT32;
    case at::kLong: return PERSEUS_DTYPE_INT64;
    case at::kHalf: return PERSEUS_DTYPE_FLOAT16;
    case at::kBFloat16: return PERSEUS_DTYPE_BFLOAT16;
    case at::kFloat: return PERSEUS_DTYPE_FLOAT32;
    case at::kDouble: return PERSEUS_DTYPE_FLOAT64;
    default: return -1;
  }
}

// Returns false for operations that Python looks after.
bool translate(c10d::ReduceOp::RedOpType op, at::ScalarType type, PerseusReduceOptions& options) {
  switch (op) {
    case c10d::ReduceOp::SUM: break;
    case c10d::ReduceOp::AVG:
      // Python widens integers, whose sum may wrap before it is divided.
      if (c10::isIntegralType(type, /*includeBool=*/true)) return false;
      options.average = 1;
      break;
    case c10d::ReduceOp::MIN: options.op = PERSEUS_OP_MIN; break;
    case c10d::ReduceOp::MAX: options.op = PERSEUS_OP_MAX; break;
    case c10d::ReduceOp::PRODUCT: options.op = PERSEUS_OP_PRODUCT; break;
    default: return false;
  }
  return true;
}

// Some tensors have none: torch.func wraps tensors, and a storage may have been freed.
bool has_memory(const at::Tensor& tensor) {
  return tensor.has_storage() && (tensor.numel() == 0 || tensor.storage().data() != nullptr);
}

// torch's functions give a group complex tensors as real ones, about whose dtype Python lets the ranks agree.
bool may_be_complex(const at::Tensor& tensor) { return tensor.is_view() && tensor._base().is_complex(); }

bool is_direct(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch() && tensor.is_contiguous() &&
         tensor.numel() < most_elements && dtype_of(tensor.scalar_type()) >= 0 && has_memory(tensor) &&
         !may_be_complex(tensor);
}

// torch 2.5 and later have `asyncOp`.
template <typename Options, typename = void>
struct WaitsNext {
  static bool of(const Options&) { return false; }
};
template <typename Options>
struct WaitsNext<Options, std::void_t<decltype(std::declval<Options>().asyncOp)>> {
  static bool of(const Options& options) { return !options.asyncOp; }
};

class NativeGroup : public c10d::PyProcessGroup {
 public:
  NativeGroup(int rank, int size) : PyProcessGroup(rank, size) {}

  // C++ and compiled code call this.
  WorkPointer allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    if (tensors.size() == 1) {
      if (auto work = try_allreduce(tensors[0], options)) return work;
    }
    const py::gil_scoped_acquire gil;
    return c10::make_intrusive<PyWorkHolder>(members->group().attr(kInPython)(tensors, options));
  }

  // Returns null if Python must execute the call.
  WorkPointer try_allreduce(const at::Tensor& tensor, const c10d::AllreduceOptions& options) {
    PerseusRequest request{};
    request.reduce = {PERSEUS_OP_SUM, 0, 1.0, 1.0, PERSEUS_SAME_DTYPE};
    const bool has_limit = options.timeout > std::chrono::milliseconds(0);
    if (in_callback || is_coalescing || has_limit || !is_direct(tensor) ||
        !translate(options.reduceOp.op_, tensor.scalar_type(), request.reduce)) {
      return {};
    }
    const bool waits = WaitsNext<c10d::AllreduceOptions>::of(options);
    return start(tensor, request, waits ? PERSEUS_BEGIN_AT_WAIT : PERSEUS_BEGIN_NOW);
  }

  const std::shared_ptr<Members> members = std::make_shared<Members>();
  std::atomic<bool> is_coalescing{false};

 private:
  WorkPointer start(const at::Tensor& tensor, PerseusRequest& request, PerseusBegin begin) {
    const auto number = members->calls.fetch_add(1);
    const auto name = "#" + std::to_string(number);
    const std::int64_t elements = tensor.numel();
    const PerseusTensor view{tensor.data_ptr(), dtype_of(tensor.scalar_type()), 1, &elements};
    request.verb = PERSEUS_ALLREDUCE;
    request.process_set = members->process_set;
    request.name = name.c_str();
    request.tensor_count = 1;
    request.inputs = &view;
    void* handle = nullptr;
    std::array<char, 4096> message{};
    const auto error = api->start(&request, "all_reduce", begin, &handle, message.data(), message.size());
    if (error != PERSEUS_OK) refuse(number, error, message.data());
    return c10::make_intrusive<NativeWork>(members, handle, tensor, number);
  }

  // Reports a rejected request to the other ranks, and raises its error, both by Python.
  [[noreturn]] void refuse(std::uint64_t number, std::int32_t error, const char* message) {
    const py::gil_scoped_acquire gil;
    members->group().attr("_reject")(number, error, message);
    throw std::runtime_error(message);
  }
};

// Throws if the object is not such a group.
NativeGroup& native(const py::handle& group) { return dynamic_cast<NativeGroup&>(*group.cast<c10d::ProcessGroup*>()); }

// Returns the one tensor in the arguments of allreduce(group, tensors, options), or null if Python must look at them.
PyObject* tensor_in(PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  if (count != 3 || names != nullptr || !py::isinstance<c10d::AllreduceOptions>(arguments[2])) return nullptr;
  PyObject* tensor = arguments[1];
  if (PyList_Check(tensor) && PyList_GET_SIZE(tensor) == 1) tensor = PyList_GET_ITEM(tensor, 0);
  return THPVariable_Check(tensor) ? tensor : nullptr;
}

// The method `allreduce` of groups in Python.
PyObject* allreduce(PyObject*, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  try {
    if (auto* tensor = tensor_in(arguments, count, names)) {
      const auto& options = py::handle(arguments[2]).cast<const c10d::AllreduceOptions&>();
      auto work = native(arguments[0]).try_allreduce(THPVariable_Unpack(tensor), options);
      if (work) return py::cast(std::move(work)).release().ptr();
    }
    const auto method = py::reinterpret_steal<py::object>(PyObject_GetAttrString(arguments[0], kInPython));
    if (!method) return nullptr;
    return PyObject_Vectorcall(method.ptr(), arguments + 1, static_cast<std::size_t>(count - 1), names);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef allreduce_definition = {"allreduce",
                                    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allreduce)),
                                    METH_FASTCALL | METH_KEYWORDS, nullptr};

py::object method(PyMethodDef& definition) {
  const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&definition, nullptr));
  return py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
}

// Makes the C++ object of a group in Python, in place of ProcessGroup.__init__.
void define_init(py::module_& module) {
  const auto type = py::type::of<c10d::ProcessGroup>();
  module.attr("init") = py::cpp_function(
      [](py::detail::value_and_holder& self, int rank, int size) {
        self.value_ptr() = static_cast<c10d::ProcessGroup*>(new NativeGroup(rank, size));
      },
      py::name("__init__"), py::is_method(type), py::detail::is_new_style_constructor());
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::module_::import("torch._C._distributed_c10d");
  define_init(module);
  module.attr("allreduce") = method(allreduce_definition);
  module.def("use", [](std::uintptr_t address, std::int64_t elements) {
    api = reinterpret_cast<const PerseusApi*>(address);
    most_elements = elements;
  });
  module.def("set_in_callback", [](bool is) { in_callback = is; });
  module.def("set_members", [](const py::object& group, const py::object& weak, int process_set) {
    native(group).members->group = weak;
    native(group).members->process_set = process_set;
  });
  module.def("set_limit", [](const py::object& group, double seconds) {
    native(group).members->limit_nanoseconds = static_cast<std::int64_t>(std::min(seconds, 1e9) * 1e9);
  });
  module.def("set_coalescing", [](const py::object& group, bool is) { native(group).is_coalescing = is; });
  module.def("calls", [](const py::object& group) { return native(group).members->calls.load(); });
  module.def("next_call", [](const py::object& group) { return native(group).members->calls.fetch_add(1); });
  py::class_<NativeWork, c10d::Work, c10::intrusive_ptr<NativeWork>>(module, "NativeWork")
      .def("in_python", [](NativeWork& self) { return self.in_python(); });
}
