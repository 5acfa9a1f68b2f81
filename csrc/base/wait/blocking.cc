#include "base/wait/blocking.h"

#include <utility>

namespace perseus {

namespace {

thread_local BlockingHook* hook_of_thread = nullptr;

}  // namespace

void before_blocking() {
  if (hook_of_thread != nullptr) hook_of_thread->call_();
}

BlockingHook::BlockingHook(std::function<void()> call) : call_(std::move(call)) { hook_of_thread = this; }

BlockingHook::~BlockingHook() { hook_of_thread = nullptr; }

}  // namespace perseus
