// The callback by which an asynchronous kernel tells TensorFlow that it is done.
#pragma once

#include <functional>

#include "../native/tensorflow.h"

namespace perseus::tensorflow {

// Returns a copy of the callback that stays valid after the kernel's function has returned; empty if that is
// impossible. TF_RunAsyncOpKernelDoneCallback(done) is valid only until then.
//
// Relies on: TF_AsyncOpKernelDoneCallback being a std::function<void()> of libstdc++, two words of data and two
// pointers to functions of TensorFlow. Tried with: all. Notices: the third or fourth word is no address in one of
// TensorFlow's libraries. Lost then: each collective of a graph blocks a thread of TensorFlow, and they run one after
// the other. The log says so.
std::function<void()> copy_of(const TF_AsyncOpKernelDoneCallback* done);

// For tests: makes copy_of return nothing.
void distrust_done(bool distrust);

}  // namespace perseus::tensorflow
