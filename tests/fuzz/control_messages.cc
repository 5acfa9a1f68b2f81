// Fuzzes the decoders of the negotiation's reports and plans. A message that was decoded must stay the same if it is
// encoded and decoded again.
#include <cstdlib>

#include "base/error.h"
#include "control/messages.h"
#include "fuzz_input.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const bool is_report = input.below(2) == 0;
  try {
    const auto bytes = input.rest();
    const auto once = is_report ? encode(decode_report(bytes)) : encode(decode_plan(bytes));
    const auto twice = is_report ? encode(decode_report(once)) : encode(decode_plan(once));
    if (once != twice) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
