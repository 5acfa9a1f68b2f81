"""`python -m perseus_like.mxnet.compat`: checks the private parts of MXNet that the functions rely on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import mxnet as mx

from perseus_like.compat_probes import expect, main

from .. import engine
from . import gluon, library, parameters


def _array() -> Any:
    return mx.nd.array([1.0, 2.0, 3.0])


def _library_handle() -> None:
    version = ctypes.c_int()
    loaded = ctypes.CDLL(None, handle=library.library_handle())
    loaded.MXGetVersion(ctypes.byref(version))
    expect(version.value // 10000 == 1, "_LIB._handle is not MXNet's library")


def _handle_of() -> None:
    expect(isinstance(library.handle_of(_array()), ctypes.c_void_p), "NDArray.handle is no pointer")


def _array_of() -> None:
    array, handle = _array(), ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXShallowCopyNDArray(library.handle_of(array), ctypes.byref(handle)))
    copy = library.array_of(handle.value)
    expect(copy.asnumpy().tolist() == [1.0, 2.0, 3.0], "an NDArray of a handle has other elements")


def _address_of() -> None:
    array = _array()
    array.wait_to_read()
    elements = (ctypes.c_float * 3).from_address(library.address_of(array))
    expect(list(elements) == [1.0, 2.0, 3.0], "MXNDArrayGetData gives another address")


def _after_initialization() -> None:
    parameter = mx.gluon.Parameter("weight", shape=(0,), allow_deferred_init=True)
    parameter.initialize(init=mx.init.One())
    called: list[Any] = []
    parameters.after_initialization(parameter, lambda: called.append(parameter.list_data()[0].shape))
    parameter.shape = (2,)
    parameter._finish_deferred_init()
    expect(called == [(2,)], "Parameter._init_impl does not give a parameter its values")


def _trained() -> Any:
    parameter = mx.gluon.Parameter("weight", shape=(2,))
    parameter.initialize(init=mx.init.One())
    return parameter


def _backward(parameter: Any) -> None:
    with mx.autograd.record():
        loss = (parameter.data() * 3).sum()
    loss.backward()


def _has_new_gradient() -> None:
    parameter = _trained()
    before = parameters.has_new_gradient(parameter)
    _backward(parameter)
    expect((before, parameters.has_new_gradient(parameter)) == (False, True), "NDArray._fresh_grad is not set")


def _mark_new_gradient() -> None:
    parameter = _trained()
    parameters.mark_new_gradient(parameter)
    expect(parameters.has_new_gradient(parameter), "NDArray._fresh_grad cannot be set")


def _replace_gradient() -> None:
    parameter, place = _trained(), mx.nd.zeros((2,))
    parameters.replace_gradient(parameter, place)
    _backward(parameter)
    expect(parameter.list_grad()[0] is place, "Parameter._grad is not the list of gradients")
    expect(place.asnumpy().tolist() == [3.0, 3.0], "a backward pass writes to another array")


def _trainer() -> None:
    parameter = _trained()
    called: list[Any] = []
    kind = gluon.trainer_that_reduces(called.append, lambda *arguments: called.append(arguments))
    trainer = kind([parameter], "sgd", kvstore=None)
    _backward(parameter)
    trainer.step(1, ignore_stale_grad=True)
    expect(called == [trainer, (trainer, True)], "Trainer.step does not call _allreduce_grads and _update")
    expect(list(gluon.parameters_of(trainer)) == [parameter], "Trainer._params is not the list of parameters")


def _options_of() -> None:
    options = gluon.options_of(mx.gluon.nn.BatchNorm(epsilon=0.5, momentum=0.25))
    expected = {"eps": 0.5, "momentum": 0.25, "fix_gamma": False, "use_global_stats": False}
    expect({name: options.get(name) for name in expected} == expected, "BatchNorm._kwargs has other entries")


def _register_kvstore() -> None:
    registry = mx.kvstore.KVStoreBase.kv_registry
    store = type("Store", (), {})
    gluon.register_kvstore("perseus-probe", store)
    try:
        expect(isinstance(mx.kv.create("perseus-probe"), store), "mx.kv.create does not look into kv_registry")
    finally:
        del registry["perseus-probe"]


def _native() -> None:
    engine.native()  # raises if a layout is not known


# The probe of each function that relies on a private part. The last three functions are C++.
PROBES: dict[str, Callable[[], None]] = {
    "library.library_handle": _library_handle,
    "library.handle_of": _handle_of,
    "library.array_of": _array_of,
    "library.address_of": _address_of,
    "parameters.after_initialization": _after_initialization,
    "parameters.has_new_gradient": _has_new_gradient,
    "parameters.mark_new_gradient": _mark_new_gradient,
    "parameters.replace_gradient": _replace_gradient,
    "gluon.trainer_that_reduces": _trainer,
    "gluon.parameters_of": _trainer,
    "gluon.options_of": _options_of,
    "gluon.register_kvstore": _register_kvstore,
    "layouts.callback_at": _native,
    "layouts.memory_of": _native,
    "layouts.row_layout": _native,
}

if __name__ == "__main__":
    main(f"MXNet {mx.__version__}", PROBES)
