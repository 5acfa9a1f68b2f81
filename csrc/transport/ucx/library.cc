#include "transport/ucx/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "base/config.h"
#include "base/environment.h"
#include "base/error.h"

namespace perseus::ucx {
namespace {

// The first version that was tried.
constexpr unsigned kLeastMajor = 1, kLeastMinor = 13;

void set_unless_given(const char* name, const char* value) {
  if (!environment(name)) set_environment(name, value);
}

// Sets the variables that UCX reads when it is opened, and opens the libraries that libucp needs and that are in its
// folder, where the loader does not search.
void prepare(const std::string& libucp) {
  // Python and its debuggers handle these signals. UCX would print a stack of its own.
  set_unless_given("UCX_HANDLE_ERRORS", "none");
  set_unless_given("UCX_WARN_UNUSED_ENV_VARS", "n");
  set_unless_given("UCX_LOG_FILE", "stderr");  // the standard output is the program's
  // With receives of 64 KiB, the default, 64 MiB take a quarter longer. UCX 1.13 reads it from the environment only.
  set_unless_given("UCX_TCP_RX_SEG_SIZE", "512k");
  // A rank that waits in connect() for a host that is cut off would notice nothing for two minutes.
  set_unless_given("UCX_TCP_CONN_NB", "y");
  const auto folder = std::filesystem::path(libucp).parent_path();
  if (folder.empty()) return;
  for (const char* file : {"libucm.so.0", "libucs.so.0", "libuct.so.0"}) {
    [[maybe_unused]] void* opened = dlopen((folder / file).c_str(), RTLD_NOW);  // a failure is that of libucp
  }
}

template <class Function>
void find(Function*& function, const OpenedLibrary& library, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library.handle, name));
  if (function != nullptr) return;
  throw Error(ErrorKind::unavailable, library.path + " has no " + name + "; UCX " + std::to_string(kLeastMajor) + "." +
                                          std::to_string(kLeastMinor) + " or later is needed");
}

Library load(const LibraryPaths& paths) {
  const auto opened = open_library({.title = "UCX",
                                    .file = "libucp.so.0",
                                    .setting = "PERSEUS_UCX_LIBRARY",
                                    .remedy = "Install it",
                                    .folders = below_site_packages(paths.python_prefix, "libucx/lib")},
                                   paths.given, prepare);
  Library library;
  library.path = opened.path;
#define PERSEUS_FIND(result, member, name, parameters) find(library.call.member, opened, name);
  PERSEUS_UCX_FUNCTIONS(PERSEUS_FIND)
#undef PERSEUS_FIND
  library.call.get_version(&library.major, &library.minor, &library.release);
  if (library.major != kLeastMajor || library.minor < kLeastMinor) {
    throw Error(ErrorKind::unavailable, library.path + " is UCX " + library.version() + "; UCX " +
                                            std::to_string(kLeastMajor) + "." + std::to_string(kLeastMinor) +
                                            " or a later UCX " + std::to_string(kLeastMajor) + " is needed");
  }
  return library;
}

}  // namespace

void Library::check(Status status, const std::string& function) const {
  if (status >= kOk) return;
  throw Error(ErrorKind::transport, function + " of UCX " + version() + " failed: " + call.status_string(status));
}

const Library& open(const LibraryPaths& paths) {
  static std::mutex mutex;
  static const Library* library = nullptr;  // never destroyed: threads of UCX may outlive static objects
  const std::scoped_lock lock(mutex);
  if (library == nullptr) library = new Library(load(paths));
  return *library;
}

}  // namespace perseus::ucx
