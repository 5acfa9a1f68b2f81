#include "base/memory/write_report.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

namespace perseus {

namespace {

constexpr std::size_t kSlots = 1024;

// A signal handler reads these without a lock. A slot is emptied before its memory is deleted, and `readers` counts the
// handlers that may still read it.
std::array<std::atomic<const ReadOnlyMemory*>, kSlots> slots{};
std::atomic<int> readers{0};
struct sigaction previous{};

bool contains(const NamedRange& range, std::uintptr_t address) {
  return address >= range.begin && address - range.begin < range.bytes;
}

const std::string& name_at(const ReadOnlyMemory& memory, std::uintptr_t address) {
  const auto* smallest = &memory.whole;
  for (const auto& tensor : memory.tensors) {
    if (contains(tensor, address) && tensor.bytes <= smallest->bytes) smallest = &tensor;
  }
  return smallest->name;
}

// Only calls functions that signal handlers may call.
void write_report(const ReadOnlyMemory& memory, std::uintptr_t address) {
  const auto piece = [](const std::string& text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
  char newline = '\n';
  const std::array<iovec, 4> line{piece(memory.before), piece(name_at(memory, address)), piece(memory.after),
                                  iovec{&newline, 1}};
  [[maybe_unused]] const auto written = writev(STDERR_FILENO, line.data(), static_cast<int>(line.size()));
}

void call_previous(int signal, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // The instruction is executed again when this handler returns, and the default action ends the process.
    sigaction(signal, &previous, nullptr);
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  if (info->si_code == SEGV_ACCERR) {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    readers.fetch_add(1);
    for (const auto& slot : slots) {
      const auto* memory = slot.load();
      if (memory == nullptr || !contains(memory->whole, address)) continue;
      write_report(*memory, address);
      break;
    }
    readers.fetch_sub(1);
  }
  call_previous(signal, info, context);
}

void install() {
  sigaction(SIGSEGV, nullptr, &previous);
  struct sigaction ours{};
  ours.sa_sigaction = &handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, nullptr);
}

void remove(const ReadOnlyMemory* memory) {
  for (auto& slot : slots) {
    const auto* expected = memory;
    if (slot.compare_exchange_strong(expected, nullptr)) break;
  }
  while (readers.load() != 0) std::this_thread::yield();
}

}  // namespace

std::shared_ptr<void> report_writes(ReadOnlyMemory memory) {
  static std::once_flag installed;
  std::call_once(installed, &install);
  auto entry = std::make_unique<const ReadOnlyMemory>(std::move(memory));
  for (auto& slot : slots) {
    const ReadOnlyMemory* expected = nullptr;
    if (!slot.compare_exchange_strong(expected, entry.get())) continue;
    const auto* const held = entry.release();
    return {const_cast<ReadOnlyMemory*>(held), [](void* given) {
              const std::unique_ptr<const ReadOnlyMemory> ending(static_cast<const ReadOnlyMemory*>(given));
              remove(ending.get());
            }};
  }
  return nullptr;
}

}  // namespace perseus
