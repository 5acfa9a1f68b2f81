// The memory of MXNet's arrays.
#pragma once

namespace perseus::mxnet {

using Array = void*;  // NDArrayHandle

// Returns an address that arrays have in common if and only if they are views of the same memory.
//
// Relies on: mxnet::NDArray beginning with the pointer to its NDArray::Chunk.
// Tried with: all.
// Notices: a view has another address than its array, or two arrays have the same.
// Lost then: collectives of this adapter raise an UnavailableError that says so.
void* memory_of(Array array);

// Functions that change memory in one of oneDNN's layouts back to rows. Null if MXNet was built without oneDNN.
struct RowLayout {
  // Changes an array's memory. The engine orders it among the operations on the array.
  void (*change)(const void* array) = nullptr;
  // Changes memory (see memory_of) at once. The caller must be the only user of the memory.
  void (*change_now)(void* memory) = nullptr;
};

// Returns the functions of a library that dlopen has returned.
//
// Relies on: the symbols of NDArray::Reorder2DefaultAsync() const and NDArray::Chunk::Reorder2Default().
// Tried with: all.
// Notices: one of the two symbols is missing.
// Lost then: nothing if MXNet has no oneDNN. With it, collectives of this adapter raise an UnavailableError that says
// so.
RowLayout row_layout(void* library);

}  // namespace perseus::mxnet
