# GTest::gtest_main, built with our flags (the sanitizers need that) from PERSEUS_GOOGLETEST_SOURCE or /usr/src, else the
# one that is installed.
set(PERSEUS_GOOGLETEST_SOURCE "" CACHE PATH "Folder of GoogleTest's sources")
foreach(folder "${PERSEUS_GOOGLETEST_SOURCE}" /usr/src/googletest)
  if(folder AND EXISTS "${folder}/googletest/src/gtest-all.cc")
    set(folder "${folder}/googletest")
    add_library(perseus_gtest STATIC "${folder}/src/gtest-all.cc" "${folder}/src/gtest_main.cc")
    target_include_directories(perseus_gtest SYSTEM PUBLIC "${folder}/include" PRIVATE "${folder}")
    target_compile_options(perseus_gtest PRIVATE -w -O0)
    target_link_libraries(perseus_gtest PUBLIC Threads::Threads)
    add_library(GTest::gtest_main ALIAS perseus_gtest)
    break()
  endif()
endforeach()

if(NOT TARGET GTest::gtest_main)
  find_package(GTest)
endif()
if(NOT TARGET GTest::gtest_main)
  message(FATAL_ERROR "GoogleTest is not here. Install it (Debian: apt-get install libgtest-dev), "
                      "or run cmake/get_googletest.sh FOLDER and set PERSEUS_GOOGLETEST_SOURCE to what it prints.")
endif()
