// The bootstrap of a job with one rank.
#pragma once

#include "bootstrap/bootstrap.h"

namespace perseus {

class SingleBootstrap final : public Bootstrap {
 public:
  std::string_view name() const override { return "single"; }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> allgather(std::string_view mine) override;
};

}  // namespace perseus
