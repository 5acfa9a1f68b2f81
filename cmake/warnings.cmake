# perseus_warnings(TARGET): the warnings our own code is free of; errors unless PERSEUS_WERROR is off, as it is when a
# user's pip builds with a compiler we have not seen.
function(perseus_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${PERSEUS_WERROR}>:-Werror>)
endfunction()
