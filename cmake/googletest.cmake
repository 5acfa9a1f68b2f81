# GTest::gtest_main, from PERSEUS_GOOGLETEST_SOURCE or the sources in /usr/src (built with our flags, which the sanitizers
# need), else the one that is installed.
set(PERSEUS_GOOGLETEST_SOURCE "" CACHE PATH "Folder of GoogleTest's sources")
foreach(folder "${PERSEUS_GOOGLETEST_SOURCE}" /usr/src/googletest)
  if(folder AND EXISTS "${folder}/googletest/CMakeLists.txt")
    set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
    set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
    add_subdirectory("${folder}" "${CMAKE_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
    target_compile_options(gtest PRIVATE -w)
    if(NOT TARGET GTest::gtest_main)
      add_library(GTest::gtest_main ALIAS gtest_main)
    endif()
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
