# perseus_exports(TARGET MAP): a module exports what the version script cmake/MAP names. Without it, parts of the C++ standard
# library would be visible, and another library of the process could use them.
set(perseus_maps "${CMAKE_CURRENT_LIST_DIR}")
function(perseus_exports target map)
  target_link_options(${target} PRIVATE "-Wl,--version-script,${perseus_maps}/${map}")
  if(PERSEUS_STATIC_RUNTIME)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${perseus_maps}/${map}")
endfunction()
