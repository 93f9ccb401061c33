# SPDX-License-Identifier: Apache-2.0
# cfi2sframe_add(TARGET... [OPTIONS OPTION...])
#
# Puts an SFrame section into executables, shared libraries and modules after each link. OPTIONS are options of cfi2sframe,
# such as --sframe-version 2 or --strict. CFI2SFRAME_EXECUTABLE names the program; by default it is looked up in PATH.
include_guard(GLOBAL)

find_program(CFI2SFRAME_EXECUTABLE cfi2sframe DOC "Converts the CFI of ELF files to SFrame sections")

function(cfi2sframe_add)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "OPTIONS")
  if(NOT CFI2SFRAME_EXECUTABLE)
    message(FATAL_ERROR "cfi2sframe_add: cfi2sframe is not in PATH; name it with -DCFI2SFRAME_EXECUTABLE=...")
  endif()
  if(NOT arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "cfi2sframe_add: no target")
  endif()
  foreach(target IN LISTS arg_UNPARSED_ARGUMENTS)
    if(NOT TARGET "${target}")
      message(FATAL_ERROR "cfi2sframe_add: no such target: ${target}")
    endif()
    get_target_property(type "${target}" TYPE)
    if(NOT type MATCHES "^(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)$")
      message(FATAL_ERROR "cfi2sframe_add: ${target} is not linked (${type}); name the program that links it")
    endif()
    add_custom_command(
      TARGET "${target}" POST_BUILD
      COMMAND "${CFI2SFRAME_EXECUTABLE}" --in-place --replace ${arg_OPTIONS} "$<TARGET_FILE:${target}>"
      COMMENT "Putting an SFrame section into ${target}"
      VERBATIM)
  endforeach()
endfunction()
