#include "bind/bind.h"

PYBIND11_MODULE(_core, module) {
  using namespace perseus::bind;
  module.doc() = "The compiled core of perseus_like. Private: use perseus_like.";
  module.attr("__version__") = PERSEUS_VERSION;
  bind_allreduce(module);
  bind_enums(module);
  bind_errors(module);
  bind_handle(module);
  bind_finished(module);
  bind_groups(module);
  bind_lifecycle(module);
  bind_memory(module);
  bind_optimizer(module);
  bind_sharing(module);
  bind_verbs(module);
  bind_streams(module);
  bind_settings(module);
}
