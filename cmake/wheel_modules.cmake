# For `make wheels`: one build of the core, linked into a module for each Python whose headers are given. No Python runs
# here, so the headers may be those of a Python for another processor.
#   PERSEUS_WHEEL_PYTHONS   312=/usr/include/python3.12;313=/a:/b   folders of headers, separated by colons
#   PERSEUS_PYBIND11        folder of pybind11's headers
set(PERSEUS_WHEEL_PYTHONS "" CACHE STRING "Pythons to build modules for, as VERSION=FOLDER:FOLDER")
set(PERSEUS_PYBIND11 "" CACHE PATH "Folder of pybind11's headers, with PERSEUS_WHEEL_PYTHONS")

# perseus_wheel_modules(SOURCES): adds the targets _core_<version>, and wheel_modules for all of them.
function(perseus_wheel_modules sources)
  add_custom_target(wheel_modules)
  foreach(entry IN LISTS PERSEUS_WHEEL_PYTHONS)
    string(REGEX MATCH "^([0-9]+)=(.+)$" matched "${entry}")
    if(NOT matched)
      message(FATAL_ERROR "PERSEUS_WHEEL_PYTHONS has '${entry}': use VERSION=FOLDER, for example 312=/usr/include/python3.12")
    endif()
    set(version ${CMAKE_MATCH_1})
    string(REPLACE ":" ";" headers "${CMAKE_MATCH_2}")
    set(target _core_${version})
    add_library(${target} MODULE ${sources})
    target_include_directories(${target} SYSTEM PRIVATE "${PERSEUS_PYBIND11}" ${headers})
    target_link_libraries(${target} PRIVATE perseus_core)
    target_link_options(${target} PRIVATE -s)
    perseus_exports(${target} module.map)
    # All sources read pybind11's and Python's headers, which take longer to compile than the sources.
    set_target_properties(${target} PROPERTIES PREFIX "" UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0
      OUTPUT_NAME "_core.cpython-${version}-${CMAKE_SYSTEM_PROCESSOR}-linux-gnu"
      LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/python/${version}")
    perseus_warnings(${target})
    add_dependencies(wheel_modules ${target})
  endforeach()
endfunction()
