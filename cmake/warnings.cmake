# perseus_warnings(TARGET): the warnings our own code is free of; errors unless PERSEUS_WERROR is off, as it is when a
# user's pip builds with a compiler we have not seen.
function(perseus_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${PERSEUS_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It tells that GCC 4.6 passed wide vectors in another way; ours never cross a library.
    target_compile_options(${target} PRIVATE -Wno-psabi)
    if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # GCC bug 105651: a false alarm at "text" + std::string.
      target_compile_options(${target} PRIVATE -Wno-restrict)
    endif()
  endif()
endfunction()
