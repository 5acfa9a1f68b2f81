// Opens one libnccl through this library's own loader, and prints its version and the beginning of a unique id.
#include <cstdio>
#include <exception>

#include "transport/xccl/libraries/library.h"

int main(int count, char** arguments) {
  using namespace perseus::xccl;  // NOLINT
  if (count != 2) return 2;
  try {
    const auto library = open_nccl({.given = arguments[1], .python_prefix = ""});
    UniqueId id{};
    library->check(library->call.get_unique_id(&id), "GetUniqueId");
    bool any = false;
    for (const char byte : id.bytes) any = any || byte != 0;
    std::printf("%s%s\n", library->title().c_str(), any ? "" : ": the unique id is empty");
    return any ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
