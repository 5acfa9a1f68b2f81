#include "base/environment.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace perseus {

namespace {

// All tables that were ever published. Other threads may still read any of them.
struct Published {
  std::mutex mutex;  // guards the rest
  std::vector<std::unique_ptr<std::vector<char*>>> tables;
  std::vector<std::unique_ptr<std::string>> entries;
};

Published& published() {
  static auto* the_one = new Published;  // never destroyed: threads may outlive static objects
  return *the_one;
}

bool is_entry_of(const char* entry, const std::string& name) {
  return std::strncmp(entry, name.c_str(), name.size()) == 0 && entry[name.size()] == '=';
}

}  // namespace

void set_environment(const std::string& name, const std::optional<std::string>& value) {
  auto& all = published();
  const std::scoped_lock lock(all.mutex);
  auto table = std::make_unique<std::vector<char*>>();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!is_entry_of(*entry, name)) table->push_back(*entry);
  }
  if (value) {
    all.entries.push_back(std::make_unique<std::string>(name + '=' + *value));
    table->push_back(all.entries.back()->data());
  }
  table->push_back(nullptr);
  std::atomic_ref(environ).store(table->data(), std::memory_order_release);
  all.tables.push_back(std::move(table));
}

}  // namespace perseus
