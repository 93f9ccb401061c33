# SPDX-License-Identifier: Apache-2.0
# $(call sframe,FILE): put the section into the file just linked. Use it as the last line of the rule that links, together
# with .DELETE_ON_ERROR, because make would take a file that could not be converted for an up-to-date one.
CFI2SFRAME      ?= cfi2sframe
CFI2SFRAMEFLAGS ?=

sframe = $(CFI2SFRAME) --in-place --replace $(CFI2SFRAMEFLAGS) $(1)
