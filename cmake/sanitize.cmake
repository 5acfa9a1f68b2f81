# PERSEUS_SANITIZE=address (with undefined behaviour), thread, or fuzz (address, undefined behaviour and libFuzzer's
# coverage; clang only): for everything in this build, GoogleTest included.
if(PERSEUS_SANITIZE STREQUAL "address")
  set(sanitize_flags -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(PERSEUS_SANITIZE STREQUAL "thread")
  # GCC warns that TSan does not see fences; where one is used, that file says so to TSan.
  set(sanitize_flags -fsanitize=thread -Wno-tsan)
elseif(PERSEUS_SANITIZE STREQUAL "fuzz")
  set(sanitize_flags -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
elseif(NOT PERSEUS_SANITIZE STREQUAL "")
  message(FATAL_ERROR "PERSEUS_SANITIZE is '${PERSEUS_SANITIZE}': use address, thread, fuzz or nothing")
endif()

if(PERSEUS_SANITIZE)
  if(PERSEUS_SANITIZE STREQUAL "thread" AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(REMOVE_ITEM sanitize_flags -Wno-tsan)
  endif()
  add_compile_options(${sanitize_flags} -O1 -g -fno-omit-frame-pointer -UNDEBUG)
  add_link_options(${sanitize_flags})
endif()
