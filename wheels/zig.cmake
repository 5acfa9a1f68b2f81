# CMake toolchain of `make wheels`: clang, libc++ and lld of the package `ziglang` from PyPI. libc++ and the unwinder are
# linked statically, so a wheel needs glibc alone.
#   PERSEUS_WHEEL_PROCESSOR   x86_64 or aarch64
#   PERSEUS_WHEEL_TOOLS       folder of the programs c++, ar and ranlib, which wheels/build.py writes
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${PERSEUS_WHEEL_PROCESSOR})
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PERSEUS_WHEEL_PROCESSOR PERSEUS_WHEEL_TOOLS)
set(CMAKE_CXX_COMPILER "${PERSEUS_WHEEL_TOOLS}/c++")
set(CMAKE_AR "${PERSEUS_WHEEL_TOOLS}/ar" CACHE FILEPATH "zig ar")
set(CMAKE_RANLIB "${PERSEUS_WHEEL_TOOLS}/ranlib" CACHE FILEPATH "zig ranlib")
